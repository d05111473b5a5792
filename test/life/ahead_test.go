package life

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// nobodys are the IDs of pods whose namespaces are there and that nobody has asked for yet.
func nobodys(t *testing.T, n *node.Node) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.State, "pods"))
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, e := range entries {
		ids[e.Name()] = true
	}
	list, err := n.Runtime.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list.Items {
		delete(ids, pod.Id)
	}
	return slices.Sorted(maps.Keys(ids))
}

func wantNobodys(t *testing.T, n *node.Node, want int, when string) (ids []string) {
	t.Helper()
	claim := fmt.Sprintf("the namespaces of %d pods are ready %s", want, when)
	nodetest.Eventually(t, 20*time.Second, claim, func() error {
		if ids = nobodys(t, n); len(ids) != want {
			return fmt.Errorf("there are those of %q", ids)
		}
		return nil
	})
	return ids
}

// TestAPodOfNamespacesThatWereMadeAhead is what any other is: its name, its sysctls, its address, its host port, its
// /dev/shm and its files. One that they do not serve is made from nothing. They outlive neither a kill of berthd, nor
// its end, nor the last pod.
func TestAPodOfNamespacesThatWereMadeAhead(t *testing.T) {
	nodetest.BerthOnly(t, "Berth's own way with namespaces")
	n := nodetest.Start(t, node.Options{Config: "[network]\nprepared_pods = 2\n"})
	if ids := nobodys(t, n); len(ids) > 0 {
		t.Errorf("there are those of %q before the first pod", ids)
	}
	first := nodetest.RunPod(t, n)
	first.Run()
	ready := wantNobodys(t, n, 2, "after a pod")

	port := freePort(t)
	other := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.Sysctls = map[string]string{"net.ipv4.conf.default.rp_filter": "2"}
	})
	if slices.Contains(ready, other.ID) {
		t.Error("a pod with sysctls of interfaces got an interface that was there before them")
	}
	if got := other.Output("cat /proc/sys/net/ipv4/conf/eth0/rp_filter"); got != "2\n" {
		t.Errorf("its interface has rp_filter %q", got)
	}
	pod := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Hostname = "made-ahead"
		c.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "40000 41000", "kernel.shm_rmid_forced": "1"}
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 8080, HostPort: port}}
	})
	if !slices.Contains(ready, pod.ID) {
		t.Fatalf("pod %s is made from nothing; ready were %q", pod.ID, ready)
	}
	c := pod.Run(web("made-ahead-page", 8080))
	c.WaitLog("ready")
	got := c.Sh("hostname; cat /etc/hostname /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_local_port_range; " +
		"ip -4 -o address show eth0; echo shared >/dev/shm/x; cat /dev/shm/x; grep made-ahead /etc/hosts")
	for _, want := range []string{
		"made-ahead\nmade-ahead\n1\n40000\t41000\n", pod.IP(), "shared\n", pod.IP() + "\tmade-ahead",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("inside it is\n%s\nwithout %q", got, want)
		}
	}
	wantPage(t, pod.IP()+":8080", "made-ahead-page")
	if at := outward(t); at != "" {
		wantPage(t, fmt.Sprintf("%s:%d", at, port), "made-ahead-page")
	}
	if got := first.Run().Sh("hostname"); strings.Contains(got, "made-ahead") {
		t.Errorf("another pod has its name: %q", got)
	}

	before := wantNobodys(t, n, 2, "again")
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ids := nobodys(t, n); len(ids) > 0 {
		t.Errorf("a kill has left those of %q; there were %q", ids, before)
	}
	wantPage(t, pod.IP()+":8080", "made-ahead-page")

	pod.Run(nodetest.Sh("exec sleep 1000"))
	nodetest.RunPod(t, n).Run()
	wantNobodys(t, n, 2, "after the restart")
	list, err := n.Runtime.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if _, err := n.Runtime.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: p.Id}); err != nil {
			t.Error(err)
		}
	}
	wantNobodys(t, n, 0, "after the last pod")
	if left, err := n.Settled(20 * time.Second); err != nil || left.Count() > 0 {
		t.Errorf("left are %v: %v", left, err)
	}
	nodetest.RunPod(t, n).Run()
	wantNobodys(t, n, 2, "after the next")
}
