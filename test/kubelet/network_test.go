package kubelet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/namespace"
	"berth/test/node"
)

func TestAPodsNetworkAndNames(t *testing.T) {
	t.Parallel()
	spec := manifest("network", sh("web", serve(8080, "inside")), sh("other", sleep))
	spec.Spec.Hostname = "chosen"
	spec.Spec.HostAliases = []v1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"alias.test"}}}
	spec.Spec.DNSConfig = &v1.PodDNSConfig{
		Nameservers: []string{"192.0.2.54"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: ptr("3")}},
	}
	spec.Spec.DNSPolicy = v1.DNSDefault
	p := shared(t).run(t, spec)
	now := p.running()
	if ip, err := netip.ParseAddr(now.Status.PodIP); err != nil || !p.k.node.PodCIDR.Contains(ip) {
		t.Errorf("its address is %q, the range is %v", now.Status.PodIP, p.k.node.PodCIDR)
	}
	if err := answers("http://"+net.JoinHostPort(now.Status.PodIP, "8080")+"/", "inside"); err != nil {
		t.Error(err)
	}
	got := p.sh("other", "wget -q -O - http://127.0.0.1:8080/; hostname; grep -c alias.test /etc/hosts")
	if got != "inside\nchosen\n1" {
		t.Errorf("%q", got)
	}
	if got := p.sh("other", "cat /etc/resolv.conf"); !has(got, "192.0.2.53", "192.0.2.54", "kubelet.test", "ndots:3") {
		t.Errorf("resolv.conf is %q", got)
	}
}

func TestNamespacesOfTheHost(t *testing.T) {
	t.Parallel()
	spec := manifest("host", sh("main", sleep))
	spec.Spec.HostNetwork, spec.Spec.HostPID, spec.Spec.HostIPC = true, true, true
	p := shared(t).run(t, spec)
	p.running()
	for _, kind := range []string{"net", "pid", "ipc"} {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.sh("main", "readlink /proc/self/ns/"+kind); got != own {
			t.Errorf("%s is %s, the host's is %s", kind, got, own)
		}
	}
	if got := p.sh("main", "ls /sys/class/net"); !strings.Contains(got, p.k.node.Bridge) {
		t.Errorf("it sees the interfaces %q", got)
	}
}

func TestASharedProcessNamespace(t *testing.T) {
	t.Parallel()
	spec := manifest("sharedpid", sh("one", "exec sleep 4321"), sh("two", sleep))
	spec.Spec.ShareProcessNamespace = ptr(true)
	p := shared(t).run(t, spec)
	p.running()
	if got := p.sh("two", "ps | grep -c 'sleep 432[1]'"); got != "1" {
		t.Errorf("it sees %s processes of the other container", got)
	}
}

func TestHostPorts(t *testing.T) {
	t.Parallel()
	tcp, err := freePort("tcp")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := freePort("udp")
	if err != nil {
		t.Fatal(err)
	}
	spec := manifest("hostport",
		sh("tcp", serve(8080, "through a host port"), func(c *v1.Container) {
			c.Ports = []v1.ContainerPort{{ContainerPort: 8080, HostPort: int32(tcp), HostIP: "127.0.0.1"}}
		}),
		sh("udp", sleep, func(c *v1.Container) {
			c.Ports = []v1.ContainerPort{{ContainerPort: 8081, HostPort: int32(udp), Protocol: v1.ProtocolUDP}}
		}))
	p := shared(t).run(t, spec)
	p.running()
	at := fmt.Sprintf("http://127.0.0.1:%d/", tcp)
	eventually(t, 10*time.Second, "the host port answers", func() error { return answers(at, "through a host port") })
	echo(t, p)
	conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", udp))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(node.Patience(10 * time.Second))); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64)
	if _, err := conn.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(buffer); err != nil || string(buffer[:n]) != "ping" {
		t.Errorf("the UDP host port answered %q, %v", buffer[:n], err)
	}
	p.remove()
	eventually(t, 20*time.Second, "the pod is gone", p.gone)
	if err := answers(at, "through a host port"); err == nil {
		t.Error("the host port still answers")
	}
}

// echo answers what comes to UDP port 8081 of a pod with the same, until the test ends: busybox has no server for UDP.
func echo(t *testing.T, p *pod) {
	t.Helper()
	pid := p.pid("udp")
	var conn net.PacketConn
	err := namespace.Do(fmt.Sprintf("/proc/%d/ns/net", pid), func() (err error) {
		conn, err = net.ListenPacket("udp4", "0.0.0.0:8081")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() { // ends with the socket
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buffer[:n], from)
		}
	}()
}
