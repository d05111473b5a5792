package life

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	pins "berth/internal/namespace"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// web serves the page on a port of the container's network.
func web(page string, port int) nodetest.ContainerEdit {
	return nodetest.Sh(fmt.Sprintf("mkdir -p /www; echo %s >/www/index.html; echo ready; exec httpd -f -p %d -h /www",
		page, port))
}

// get asks an address for its page.
func get(address string) (string, error) {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "GET /index.html HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	data, err := io.ReadAll(conn)
	return string(data), err
}

func wantPage(t *testing.T, address, page string) {
	t.Helper()
	nodetest.Eventually(t, 10*time.Second, "the page comes from "+address, func() error {
		got, err := get(address)
		if err == nil && !strings.Contains(got, page) {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
}

// freePort is a TCP port of the machine that nobody listens on.
func freePort(t *testing.T) int32 {
	t.Helper()
	return int32(nodetest.Port(t))
}

// outward is an address of this machine that is neither loopback nor of a bridge of pods.
func outward(t *testing.T) string {
	t.Helper()
	conn, err := net.Dial("udp", "192.0.2.1:9") // sends nothing
	if err != nil {
		return ""
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String()
}

// reach checks everything that a pod's network promises, on one node.
func reach(t *testing.T, n *node.Node) {
	port := freePort(t)
	server := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 8080, HostPort: port}}
	})
	c := server.Run(web("page-of-"+n.Name, 8080))
	c.WaitLog("ready")
	if !strings.HasPrefix(server.IP(), n.PodCIDR.String()[:strings.LastIndex(n.PodCIDR.String(), ".")]) {
		t.Errorf("the address %s is not in %s", server.IP(), n.PodCIDR)
	}
	page := "page-of-" + n.Name
	wantPage(t, server.IP()+":8080", page)
	if ip := outward(t); ip != "" {
		wantPage(t, fmt.Sprintf("%s:%d", ip, port), page)
	}
	wantPage(t, fmt.Sprintf("127.0.0.1:%d", port), page)

	client := nodetest.RunPod(t, n).Run()
	ask := "printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | nc -w 30 %s %d"
	if got := client.Sh(fmt.Sprintf(ask, server.IP(), 8080)); !strings.Contains(got, page) {
		t.Errorf("pod to pod: %q", got)
	}
	if ip := outward(t); ip != "" {
		if got := client.Sh(fmt.Sprintf(ask, ip, port)); !strings.Contains(got, page) {
			t.Errorf("pod to host port: %q", got)
		}
		if got := c.Sh(fmt.Sprintf(ask, ip, port)); !strings.Contains(got, page) {
			t.Errorf("hairpin, a pod to its own host port: %q", got)
		}
	}
	if got := c.Sh(fmt.Sprintf(ask, "127.0.0.1", 8080)); !strings.Contains(got, page) {
		t.Errorf("loopback in the pod: %q", got)
	}
	server.Stop()
	if got, err := get(fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
		t.Errorf("the host port of a stopped pod answers: %q", got)
	}
}

func TestPodsAreReached(t *testing.T) { reach(t, nodetest.Shared(t)) }

func TestAUDPHostPortIsReached(t *testing.T) {
	n := nodetest.Shared(t)
	port := freePort(t)
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_UDP, ContainerPort: 9999, HostPort: port}}
	})
	target := outward(t)
	if target == "" {
		t.Skip("no address but loopback")
	}
	receiver := listenUDP(t, hostPID(t, p.Run()), 9999)
	nodetest.Eventually(t, 10*time.Second, "a datagram arrives", func() error {
		conn, err := net.Dial("udp", net.JoinHostPort(target, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "datagram"); err != nil {
			return err
		}
		buffer := make([]byte, 64)
		if err := receiver.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		size, from, err := receiver.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if string(buffer[:size]) != "datagram" {
			return fmt.Errorf("got %q", buffer[:size])
		}
		if _, err := receiver.WriteTo([]byte("answer"), from); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		size, err = conn.Read(buffer)
		if err == nil && string(buffer[:size]) != "answer" {
			err = fmt.Errorf("answered %q", buffer[:size])
		}
		return err
	})
}

// listenUDP opens a socket in the network namespace of a process.
func listenUDP(t *testing.T, pid, port int) net.PacketConn {
	t.Helper()
	var conn net.PacketConn
	err := pins.Do(fmt.Sprintf("/proc/%d/ns/net", pid), func() (err error) {
		conn, err = net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestNetworkProvidersFindTheNamespacesOfLaterPods: a DaemonSet has mounted their directory, and is told a path in it.
//
// Seen to fail without namespace.Share.
func TestNetworkProvidersFindTheNamespacesOfLaterPods(t *testing.T) {
	nodetest.BerthOnly(t, "the directory is the node's own")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run(nodetest.Mounts(&cri.Mount{HostPath: n.NetNSDir, ContainerPath: "/run/netns",
		Propagation: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}))
	later := nodetest.RunPod(t, n)
	want := later.Run().Sh("stat -L -c %i /proc/self/ns/net")
	at := "/run/netns/berth-" + later.ID
	if got := c.Sh("stat -L -c %i " + at); got != want {
		t.Errorf("the namespace at %s is %s, and that of the pod %s", at, got, want)
	}
	if data, err := os.Readlink(filepath.Join(n.State, "pods", later.ID, "ns", "net")); err != nil ||
		data != filepath.Join(n.NetNSDir, "berth-"+later.ID) {
		t.Errorf("beside the other namespaces is %q, %v", data, err)
	}
	later.Remove()
	if got := c.Sh("ls /run/netns"); strings.Contains(got, later.ID) {
		t.Errorf("the namespace of a removed pod is there: %s", got)
	}
}

func TestTwoNodesLiveSideBySide(t *testing.T) {
	one, two := nodetest.Shared(t), nodetest.Start(t, node.Options{})
	a, b := nodetest.RunPod(t, one), nodetest.RunPod(t, two)
	a.Run(web("one", 8080))
	b.Run(web("two", 8080))
	first, second := a.IP()+":8080", b.IP()+":8080"
	wantPage(t, first, "one")
	wantPage(t, second, "two")
	list, err := two.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Id != b.ID {
		t.Errorf("the second node lists %v, %v", list, err)
	}
	if nodetest.Containerd() {
		return
	}
	if err := two.Kill(); err != nil {
		t.Fatal(err)
	}
	wantPage(t, first, "one")
	wantPage(t, second, "two")
	if err := two.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	wantPage(t, second, "two")
}

func TestANodeWithCNI(t *testing.T) {
	n := nodetest.Start(t, node.Options{CNI: true})
	reach(t, n)
}

func TestARuntimeHandlerNamesAnOCIRuntime(t *testing.T) {
	n := nodetest.Shared(t)
	for _, handler := range []string{"runc", "crun"} {
		t.Run(handler, func(t *testing.T) {
			nodetest.Handler(t, n, handler)
			p := nodetest.RunPodHandler(t, n, handler)
			if got := p.Status().RuntimeHandler; got != handler {
				t.Errorf("the pod's handler is %q", got)
			}
			if got := p.Output("echo out; echo err >&2; id -u"); got != "out\n0\n" {
				t.Errorf("got %q", got)
			}
			if s := p.Run(nodetest.Sh("exit 7")).WaitExit(); s.ExitCode != 7 || s.Reason != "Error" {
				t.Errorf("ended with %d (%s)", s.ExitCode, s.Reason)
			}
			c := p.Run(func(c *cri.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 64 << 20 })
			if r, err := c.Exec(60, "sh", "-c", "echo in; exit 3"); err != nil || string(r.Stdout) != "in\n" || r.ExitCode != 3 {
				t.Errorf("exec: %v, %v", r, err)
			}
			if got := cgroupFile(t, c, "memory/memory.limit_in_bytes", "memory.max"); got != "67108864" {
				t.Errorf("memory limit: %s", got)
			}
			if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
				ContainerId: c.ID, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 96 << 20},
			}); err != nil {
				t.Error(err)
			} else if got := cgroupFile(t, c, "memory/memory.limit_in_bytes", "memory.max"); got != "100663296" {
				t.Errorf("memory limit after the update: %s", got)
			}
			terminal := p.Run(nodetest.Sh("tty && echo has one"), func(c *cri.ContainerConfig) { c.Tty = true })
			if s := terminal.WaitExit(); s.ExitCode != 0 {
				t.Errorf("terminal: ended with %d: %s", s.ExitCode, terminal.Log())
			}
			missing := p.Create(func(c *cri.ContainerConfig) { c.Command = []string{"/no/such/program"} })
			if err := missing.TryStart(); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
				t.Errorf("a missing program: %v", err)
			}
			c.Stop(0)
			if s := c.Status(); s.ExitCode != 137 {
				t.Errorf("killed: %d", s.ExitCode)
			}
		})
	}
}
