package node_test

import (
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m) }

// TestLeftoversSeeARunningPod proves that a count of zero means something.
func TestLeftoversSeeARunningPod(t *testing.T) {
	n := nodetest.Shared(t)
	if left, err := n.Leftovers(); err != nil || left.Count() != 0 {
		t.Fatalf("a fresh node: %v\n%s", err, left)
	}
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{ContainerPort: 80, HostPort: 34567, HostIp: "127.0.0.9"}}
	})
	c := p.Run()
	left, err := n.Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	for kind, found := range map[string][]string{
		"processes": left.Processes, "mounts": left.Mounts, "interfaces": left.Interfaces, "addresses": left.Addresses,
		"cgroups": left.Cgroups, "directories": left.Directories,
	} {
		if len(found) == 0 {
			t.Errorf("of a running pod no %s are seen:\n%s", kind, left)
		}
	}
	if !nodetest.Containerd() && len(left.Rules) == 0 {
		t.Errorf("of a host port no rules are seen:\n%s", left)
	}
	if pid, err := n.ContainerPID(c.ID); err != nil || pid == 0 {
		t.Errorf("the container's process: %d, %v", pid, err)
	}
	p.Remove()
	if nodetest.Containerd() {
		return
	}
	if left, err := n.Settled(time.Minute); err != nil || left.Count() != 0 {
		t.Errorf("after its removal: %v\n%s", err, left)
	}
}

func TestAStoppedNodeIsGone(t *testing.T) {
	nodetest.Root(t)
	n := nodetest.Start(t, node.Options{})
	if n.PID() == 0 {
		t.Fatal("it does not run")
	}
	if _, err := node.PSS(n.PID()); err != nil {
		t.Error(err)
	}
	if used, err := node.CPUTime(n.PID()); err != nil || used == 0 {
		t.Errorf("CPU time %v, %v", used, err)
	}
	nodetest.RunPod(t, n).Run()
	if err := n.Reboot(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
}
