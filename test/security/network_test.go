package security

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks of a container on the network of other pods and of the node.

// CVE-2020-15257 (containerd): the API of a container's shim was an abstract Unix socket, which belongs to a network
// namespace and has no permissions. A container in the host's network, as root, started processes on the host by it.
//
// Nobody can hold up Berth by taking the name of such a socket either, which the container does here as any user could:
// the first pod of a node, whose range is not decided yet, gets its network.
//
// Seen to fail with an abstract socket listened to by berthd, and with one as the lock of the pods' range.
func TestCVE_2020_15257_SocketsWithoutAFile(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { namespaces(c).Network = cri.NamespaceMode_NODE })
	c := p.Run(withImage(intruderImage(t, n)))
	keeper, _ := n.KeeperPID()
	own := sockets(t, n.PID(), keeper)
	for line := range strings.Lines(c.Sh("/intruder abstract")) {
		// CONNECTED inode name: other programs of the machine may have such sockets.
		if fields := strings.Fields(line); len(fields) == 3 && own[fields[1]] != 0 {
			t.Errorf("process %d listens to the abstract socket %s, and lets a container in", own[fields[1]], fields[2])
		}
	}
	// The sockets that have files are not in the container.
	for _, socket := range []string{n.Socket, filepath.Join(n.State, "keeper", "keeper.sock")} {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", initProcess(t, c), socket)); err == nil {
			t.Errorf("the container has %s", socket)
		}
	}
	holder := p.Run(withImage(intruderImage(t, n)), func(c *cri.ContainerConfig) {
		c.Metadata.Name = "holder"
		c.Command = []string{"/intruder", "hold", "@berth/pod-ranges"}
	}, nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUser = &cri.Int64Value{Value: 65534} }))
	holder.WaitLog("HELD")
	nodetest.RunPod(t, nodetest.Start(t, node.Options{OwnCIDR: true}))
}

// CVE-2025-9074 (Docker Desktop): the engine's API, which asks nobody who they are, could be reached from containers
// at an address of their network.
//
// Seen to fail with the streaming server at 0.0.0.0 in the node's configuration.
func TestCVE_2025_9074_APodReachesTheAPI(t *testing.T) {
	n := nodetest.Shared(t)
	keeper, _ := n.KeeperPID()
	own := sockets(t, n.PID(), keeper)
	pod := nodetest.RunPod(t, n).Run()
	ports := 0
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[3] != "0A" || own[fields[9]] == 0 { // listens
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			if err != nil {
				t.Fatal(err)
			}
			ports++
			// busybox has no nc -z.
			r, err := pod.Exec(60, "sh", "-c", fmt.Sprintf("nc -w 3 %s %d </dev/null", gateway(t, n), port))
			if err != nil || r.ExitCode == 0 {
				t.Errorf("a pod reaches port %d of process %d, %v", port, own[fields[9]], err)
			}
		}
	}
	if ports == 0 {
		t.Error("berthd listens to no port at all")
	}
}

// sockets are the sockets of processes, by inode.
func sockets(t *testing.T, pids ...int) map[string]int {
	t.Helper()
	own := map[string]int{}
	for _, pid := range pids {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
			if inode, ok := strings.CutPrefix(link, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = pid
			}
		}
	}
	return own
}

// bridgeLink is the node's bridge.
func bridgeLink(t *testing.T, n *node.Node) *net.Interface {
	t.Helper()
	link, err := net.InterfaceByName(n.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// gateway is the bridge's address.
func gateway(t *testing.T, n *node.Node) netip.Addr {
	t.Helper()
	addrs, err := bridgeLink(t, n).Addrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() {
			return prefix.Addr()
		}
	}
	t.Fatalf("the bridge has no address: %v", addrs)
	return netip.Addr{}
}

// learned fails the test if an interface has an address of the prefix that the intruder advertises, or a route to it.
func learned(t *testing.T, where string, h *netlink.Handle, link string) {
	t.Helper()
	l, err := h.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := h.AddrList(l, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if strings.HasPrefix(a.IP.String(), "2001:db8:bad:") {
			t.Errorf("%s has the address %s of the intruder's choice", where, a.IPNet)
		}
	}
	routes, err := h.RouteList(l, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Protocol == unix.RTPROT_RA || r.Gw.String() == "fe80::bad" {
			t.Errorf("%s has the route %s of the intruder's choice", where, r)
		}
	}
}

// CVE-2020-13401 (Docker), CVE-2020-10749 (CNI plugins, and so containerd, CRI-O and podman): a container
// with CAP_NET_RAW, which is one of the default ones, said that it is an IPv6 router. The host, and other containers,
// took it for theirs.
//
// Seen to succeed against the node on the build that forbade it to the bridge of a node with a range of IPv6 only;
// and against other pods with accept_ra left as it is in configure of network/bridge/link.go.
func TestCVE_2020_13401_APodSaysThatItIsTheRouter(t *testing.T) {
	n := nodetest.Shared(t)
	attacker := nodetest.RunPod(t, n).Run(withImage(intruderImage(t, n)), capabilities("NET_RAW"))
	victim := nodetest.RunPod(t, n).Run()
	ns, err := netns.GetFromPid(initProcess(t, victim))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	// What arrives at the bridge is seen before the kernel looks at it.
	tap, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0xdd86) // ETH_P_IPV6 in network order
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tap)
	if err := unix.Bind(tap, &unix.SockaddrLinklayer{Protocol: 0xdd86, Ifindex: bridgeLink(t, n).Index}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(tap, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	const count = 20
	attacker.Sh(fmt.Sprintf("/intruder advertise %d", count))
	packet := make([]byte, 1500)
	for seen := 0; seen < count; {
		size, err := unix.Read(tap, packet)
		if err != nil {
			t.Fatalf("after %d advertisements: %v", seen, err)
		}
		if size > 40 && packet[6] == 58 && packet[40] == 134 {
			seen++
		}
	}
	host, err := netlink.NewHandle()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	pod, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	learned(t, "the host", host, n.Bridge)
	learned(t, "another pod", pod, "eth0")
}

// udp is a socket of the host that keeps what it gets.
type udp struct {
	net.PacketConn
	t *testing.T
}

func listenUDP(t *testing.T, at netip.Addr) *udp {
	t.Helper()
	c, err := net.ListenPacket("udp4", net.JoinHostPort(at.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &udp{c, t}
}

func (u *udp) addr() string { return u.LocalAddr().String() }

// next is a datagram that comes within some time, and who sent it.
func (u *udp) next(wait time.Duration) (text, from string) {
	u.t.Helper()
	if err := u.SetReadDeadline(time.Now().Add(wait)); err != nil {
		u.t.Fatal(err)
	}
	buffer := make([]byte, 1500)
	size, sender, err := u.ReadFrom(buffer)
	if err != nil {
		return "", ""
	}
	return string(buffer[:size]), sender.String()
}

// CVE-2020-8558 (kube-proxy, by route_localnet): a neighbour of the node reached services that listen to 127.0.0.1
// only, with packets that have that address. CVE-2025-54388 (Docker) is the same for ports that are published
// at 127.0.0.1.
//
// Berth's bridge has route_localnet, for host ports. With it, and with rp_filter off, the kernel also takes packets
// with a source of 127.0.0.0/8, but for the addresses that the node has itself: a service on an address of the node
// would take them for the node's own. Seen to fail with the chain guard left out of chains in
// network/bridge/ruleset.go, and with its rule for sources left out.
func TestCVE_2020_8558_APodSendsToLoopback(t *testing.T) {
	n := nodetest.Shared(t)
	image := intruderImage(t, n)
	attacker := nodetest.RunPod(t, n)
	c := attacker.Run(withImage(image), capabilities("NET_RAW"))
	loopback, reachable := listenUDP(t, netip.MustParseAddr("127.0.0.1")), listenUDP(t, gateway(t, n))
	mac, own := bridgeLink(t, n).HardwareAddr, attacker.IP()+":7"

	const port = 9999
	hostPort := freePort(t)
	victim := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_UDP, HostIp: "127.0.0.1", HostPort: int32(hostPort),
			ContainerPort: port}}
	})
	listener := victim.Run(withImage(image), command("/intruder", "peers", strconv.Itoa(port)))
	listener.WaitLog("listening")

	send := func(from, to, text string) { c.Sh(fmt.Sprintf("/intruder datagram %s %s %s %s", mac, from, to, text)) }
	send(own, loopback.addr(), "martian")
	send("127.0.0.1:7", loopback.addr(), "from-loopback")
	for _, link := range []string{"all", n.Bridge} {
		setForTest(t, "/proc/sys/net/ipv4/conf/"+link+"/rp_filter", "0")
	}
	for _, source := range []string{"127.0.0.1", "127.0.0.2", "127.255.255.254"} {
		send(source+":7", reachable.addr(), "spoofed")
	}
	send(own, fmt.Sprintf("127.0.0.1:%d", hostPort), "to-the-port")
	send(own, fmt.Sprintf("%s:%d", gateway(t, n), hostPort), "to-the-node")
	send(own, reachable.addr(), "last")
	if text, from := reachable.next(time.Minute); text != "last" {
		t.Errorf("the node got %q from %s first", text, from)
	}
	// Packets of one sender come in the order in which they were sent: what was let in has arrived.
	if text, from := loopback.next(time.Millisecond); text != "" {
		t.Errorf("a service on 127.0.0.1 got %q from %s", text, from)
	}
	client, err := net.Dial("udp4", fmt.Sprintf("127.0.0.1:%d", hostPort))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	nodetest.Eventually(t, 30*time.Second, "the published port works for the node itself", func() error {
		if _, err := client.Write([]byte("own")); err != nil {
			return err
		}
		if !strings.Contains(listener.Stdout(), "own") {
			return fmt.Errorf("the pod has: %s", listener.Stdout())
		}
		return nil
	})
	for _, text := range []string{"to-the-port", "to-the-node"} {
		if strings.Contains(listener.Stdout(), text) {
			t.Errorf("a port that is published at 127.0.0.1 took %q from another pod", text)
		}
	}
}

// setForTest writes a file of the kernel's, and writes what was in it again after the test.
func setForTest(t *testing.T, file, value string) {
	t.Helper()
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, was, 0); err != nil && !os.IsNotExist(err) { // the bridge may have gone
			t.Error(err)
		}
	})
}

func freePort(t *testing.T) int {
	t.Helper()
	return nodetest.Port(t)
}

// CVE-2025-67499 (CNI's portmap with nftables): a host port of a pod took all packets to that port that passed
// through the node, whatever address they were for.
//
// Seen to fail with the match of local addresses taken out of dnat in network/bridge/ruleset.go. A host port with a
// host IP is tested in that package.
func TestCVE_2025_67499_AHostPortTakesWhatIsForOthers(t *testing.T) {
	n := nodetest.Shared(t)
	image := intruderImage(t, n)
	port := freePort(t)
	thief := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, HostPort: int32(port), ContainerPort: 8080}}
	})
	thief.Run(withImage(image), command("/intruder", "peers", "8080")).WaitLog("listening")
	honest := nodetest.RunPod(t, n)
	honest.Run(withImage(image), command("/intruder", "peers", strconv.Itoa(port))).WaitLog("listening")
	to := net.JoinHostPort(honest.IP(), strconv.Itoa(port))
	answer := func() string {
		t.Helper()
		c, err := net.DialTimeout("tcp4", to, node.Patience(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		text, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	want := fmt.Sprintf("hello from %d", port)
	if got := answer(); got != want {
		t.Errorf("from the node %s says %q", to, got)
	}
	client := nodetest.RunPod(t, n).Run()
	if got := client.Sh(fmt.Sprintf("nc %s %d </dev/null", honest.IP(), port)); got != want {
		t.Errorf("from a pod %s says %q", to, got)
	}
}

// CVE-2021-20199 (podman): connections to a published port seemed to come from 127.0.0.1, which many programs trust.
//
// Seen to fail with the rule for what comes from a loopback address left out of chains in network/bridge/ruleset.go.
func TestCVE_2021_20199_AHostPortHidesWhoConnects(t *testing.T) {
	n := nodetest.Shared(t)
	image := intruderImage(t, n)
	port := freePort(t)
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, HostPort: int32(port), ContainerPort: 8080}}
	})
	c := p.Run(withImage(image), command("/intruder", "peers", "8080"))
	c.WaitLog("listening")
	client := nodetest.RunPod(t, n).Run()
	connections := 0
	for _, at := range []string{"127.0.0.1", gateway(t, n).String()} {
		conn, err := net.DialTimeout("tcp4", net.JoinHostPort(at, strconv.Itoa(port)), node.Patience(10*time.Second))
		if err != nil {
			t.Errorf("from the node to %s: %v", at, err)
			continue
		}
		_, _ = io.ReadAll(conn)
		conn.Close()
		connections++
	}
	client.Sh(fmt.Sprintf("nc %s %d </dev/null", gateway(t, n), port))
	connections++
	var peers []string
	nodetest.Eventually(t, 30*time.Second, "the pod has named its peers", func() error {
		peers = nil
		for line := range strings.Lines(c.Stdout()) {
			if peer, ok := strings.CutPrefix(strings.TrimSpace(line), "TCP "); ok {
				peers = append(peers, peer)
			}
		}
		if len(peers) < connections {
			return fmt.Errorf("it has %v", peers)
		}
		return nil
	})
	for _, peer := range peers {
		if addr, err := netip.ParseAddrPort(peer); err != nil || addr.Addr().IsLoopback() || addr.Addr().String() == p.IP() {
			t.Errorf("a connection seems to come from %s", peer)
		}
	}
}

// CVE-2021-20206 (CNI): the "type" of a network configuration could climb out of the plugins' directories,
// so that whoever may write one chose any program of the host.
//
// Seen to fail with the check of a plugin's name taken out of FindInPath in network/cni/exec.go.
func TestCVE_2021_20206_APluginOutsideOfItsDirectory(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	evil := filepath.Join(dir, "evil")
	writeFile(t, evil, []byte("#!/bin/sh\ntouch "+ran+"\n"), 0o755)
	for i, plugin := range []string{up + evil, evil, "./" + up + evil, "bridge/../" + up + evil} {
		file := fmt.Sprintf("%d-evil.conflist", i)
		config := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "evil", "plugins": [{"type": %q}]}`, plugin)
		writeFile(t, filepath.Join(n.CNIConfDir, file), []byte(config), 0o644)
		nodetest.Eventually(t, 30*time.Second, "berthd has read the configuration", func() error {
			status, err := n.Runtime.Status(nodetest.Context(t), &cri.StatusRequest{})
			if err == nil && !strings.Contains(status.String(), file) {
				err = fmt.Errorf("its status is %s", status)
			}
			return err
		})
		r, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{Config: nodetest.PodConfig(n)})
		if err == nil { // by the built-in bridge, which stands in for configurations that are none
			_, _ = n.Runtime.RemovePodSandbox(nodetest.Context(t), &cri.RemovePodSandboxRequest{PodSandboxId: r.PodSandboxId})
		}
		if _, err := os.Stat(ran); err == nil {
			t.Fatalf("the plugin %s has been run", plugin)
		}
	}
}
