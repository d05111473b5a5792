package bridge

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/network/testhost"
)

var ctx = context.Background()

func TestPodsReachEachOtherTheHostAndOutside(t *testing.T) {
	out := testhost.Outside(t)
	b := open(t, Config{Name: "brreach", StateDir: t.TempDir()})
	one, two := attach(t, b, "one"), attach(t, b, "two")
	testhost.Serve(t, two.NetNS, "tcp", ":80", "two")
	testhost.Serve(t, "", "tcp", ":8001", "host")
	testhost.Serve(t, out, "tcp", ":80", "outside")
	for _, c := range []struct{ from, to, name, seen string }{
		{one.NetNS, net.JoinHostPort(two.v4(), "80"), "two", one.v4()},
		{one.NetNS, net.JoinHostPort(two.v6(), "80"), "two", one.v6()},
		{"", net.JoinHostPort(two.v4(), "80"), "two", b.pods.pools[0].gateway.String()},
		{"", net.JoinHostPort(two.v6(), "80"), "two", b.pods.pools[1].gateway.String()},
		{one.NetNS, net.JoinHostPort(b.pods.pools[0].gateway.String(), "8001"), "host", one.v4()},
		{one.NetNS, "198.51.100.1:8001", "host", one.v4()},
		{one.NetNS, "198.51.100.2:80", "outside", "198.51.100.1"},
		{one.NetNS, "[2001:db8:51::2]:80", "outside", "2001:db8:51::1"},
		{one.NetNS, "127.0.0.1:80", "", ""}, // lo is up, and it is the pod's own
	} {
		name, seen, err := testhost.Ask(t, c.from, "tcp", c.to)
		if c.name == "" {
			if err == nil || !strings.Contains(err.Error(), "refused") {
				t.Errorf("%s: %v", c.to, err)
			}
			continue
		}
		if err != nil || name != c.name || seen != c.seen {
			t.Errorf("%s: answer of %q, who sees %q, %v; want %q, who sees %q", c.to, name, seen, err, c.name, c.seen)
		}
	}
	testhost.In(t, one.NetNS, func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil && l.Attrs().MTU != 1400 {
			t.Errorf("MTU %d, want that of the way out, 1400", l.Attrs().MTU)
		}
		return err
	})
}

// TestPodsKeepTheirAddressOnTheWayToOtherNodesPods has a pod send to a range that is not masqueraded, and beside it.
// What the ranges are may change with a restart of the daemon. Seen to fail without the rules for these ranges.
func TestPodsKeepTheirAddressOnTheWayToOtherNodesPods(t *testing.T) {
	out := testhost.Outside(t)
	cfg := Config{
		Name: "brplain", StateDir: t.TempDir(),
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.99.1.0/24"), netip.MustParsePrefix("fd00:99:1::/64")},
	}
	b := open(t, cfg)
	p := attach(t, b, "p")
	for _, address := range []string{"198.51.100.2:80", "[2001:db8:51::2]:80"} {
		testhost.Serve(t, out, "tcp", address, "outside")
	}
	testhost.In(t, out, func() error {
		for to, via := range map[string]string{"10.99.1.0/24": "198.51.100.1", "fd00:99:1::/64": "2001:db8:51::1"} {
			prefix := ipNet(netip.MustParsePrefix(to))
			if err := netlink.RouteAdd(&netlink.Route{Dst: &prefix, Gw: net.ParseIP(via)}); err != nil {
				return err
			}
		}
		return nil
	})
	check := func(when, v4, v6 string) {
		t.Helper()
		for to, want := range map[string]string{"198.51.100.2:80": v4, "[2001:db8:51::2]:80": v6} {
			if _, seen, err := testhost.Ask(t, p.NetNS, "tcp", to); err != nil || seen != want {
				t.Errorf("%s: %s sees %q, not %q (%v)", when, to, seen, want, err)
			}
		}
	}
	check("masqueraded", "198.51.100.1", "2001:db8:51::1")
	b.cfg.NonMasquerade = []netip.Prefix{
		netip.MustParsePrefix("198.51.100.0/30"), netip.MustParsePrefix("2001:db8:99::/64"),
	}
	b.pods.cfg.NonMasquerade = b.cfg.NonMasquerade
	next := crash(t, b)
	defer next.Close()
	testhost.Check(t, reconcile(next, map[string]Endpoint{"p": p.Endpoint}))
	check("with a range of IPv4 that is not", p.v4(), "2001:db8:51::1")
	testhost.Check(t, reconcile(next, nil))
	b.pods.mu.Lock()
	b.pods.records = map[string]*record{}
	b.pods.mu.Unlock()
}

// Who sends to a pod as soon as it is there asks for its link-layer address first; a question that nobody hears
// is asked again only a second later.
func TestANewPodHearsWhoAsksForIt(t *testing.T) {
	b := open(t, Config{Name: "brhear", StateDir: t.TempDir()})
	for i := range 20 {
		p := attach(t, b, fmt.Sprint("p", i))
		now, cancel := context.WithCancel(ctx)
		cancel()
		testhost.In(t, p.NetNS, func() error { return awaitSolicited(now, Interface, p.addrs[1]) })
		testhost.Check(t, awaitSolicited(now, "brhear", b.pods.pools[1].gateway))
	}
}

func TestHostPorts(t *testing.T) {
	// Where the kernel shows what is bridged to the tables for what is routed, addresses are changed in other places.
	for _, bridged := range []string{"0", "1"} {
		t.Run("bridge-nf-call="+bridged, func(t *testing.T) {
			for _, name := range []string{"iptables", "ip6tables"} {
				if err := setSysctl("net/bridge/bridge-nf-call-"+name, bridged); err != nil && bridged == "1" {
					t.Skip(err)
				}
			}
			testHostPorts(t, bridged == "1")
		})
	}
}

func testHostPorts(t *testing.T, bridged bool) {
	out := testhost.Outside(t)
	b := open(t, Config{Name: "brports", StateDir: t.TempDir()})
	server := attach(t, b, "server", tcp(8080, 80), udp(8053, 53),
		model.PortMapping{HostPort: 8081, ContainerPort: 80, HostIP: "127.0.0.1"},
		model.PortMapping{HostPort: 8082, ContainerPort: 80, HostIP: "2001:db8:51::1"},
		model.PortMapping{HostPort: 8083, ContainerPort: 80, HostIP: "0.0.0.0"})
	client := attach(t, b, "client")
	testhost.Serve(t, server.NetNS, "tcp", ":80", "server")
	testhost.Serve(t, server.NetNS, "udp4", server.v4()+":53", "server")
	testhost.Serve(t, server.NetNS, "udp6", "["+server.v6()+"]:53", "server")
	gw4, gw6 := b.pods.pools[0].gateway.String(), b.pods.pools[1].gateway.String()
	for _, c := range []struct{ from, network, to, seen string }{
		{out, "tcp", "198.51.100.1:8080", "198.51.100.2"},
		{out, "tcp", "[2001:db8:51::1]:8080", "2001:db8:51::2"},
		{out, "udp", "198.51.100.1:8053", "198.51.100.2"},
		{out, "udp", "[2001:db8:51::1]:8053", "2001:db8:51::2"},
		{"", "tcp", "198.51.100.1:8080", "198.51.100.1"},
		{"", "udp", "198.51.100.1:8053", "198.51.100.1"},
		{"", "tcp", "127.0.0.1:8080", gw4},
		{"", "tcp", "127.0.0.2:8080", gw4},
		{"", "udp", "127.0.0.1:8053", gw4},
		{"", "tcp", "[::1]:8080", gw6},
		{"", "udp", "[::1]:8053", gw6},
		{"", "tcp", net.JoinHostPort(gw4, "8080"), gw4},
		{client.NetNS, "tcp", "198.51.100.1:8080", gw4},
		{client.NetNS, "udp", "198.51.100.1:8053", gw4},
		{client.NetNS, "tcp", "[2001:db8:51::1]:8080", gw6},
		{client.NetNS, "tcp", net.JoinHostPort(gw4, "8080"), gw4},
		{server.NetNS, "tcp", "198.51.100.1:8080", gw4},
		{server.NetNS, "tcp", "[2001:db8:51::1]:8080", gw6},
		{server.NetNS, "udp", net.JoinHostPort(gw4, "8053"), gw4},
		{"", "tcp", "127.0.0.1:8081", gw4},
		{"", "tcp", "198.51.100.1:8081", ""},
		{out, "tcp", "198.51.100.1:8081", ""},
		{out, "tcp", "[2001:db8:51::1]:8082", "2001:db8:51::2"},
		{client.NetNS, "tcp", "[2001:db8:51::1]:8082", gw6},
		{"", "tcp", "[::1]:8082", ""},
		{out, "tcp", "198.51.100.1:8083", "198.51.100.2"},
		{out, "tcp", "[2001:db8:51::1]:8083", ""},
	} {
		if bridged && strings.HasPrefix(c.to, "[::1]:80") && c.seen != "" {
			continue // the kernel drops the answer: see doc.go
		}
		name, seen, err := testhost.Ask(t, c.from, c.network, c.to)
		if c.seen == "" {
			if err == nil {
				t.Errorf("%s %s is open", c.network, c.to)
			}
			continue
		}
		if err != nil || name != "server" || seen != c.seen {
			t.Errorf("%s %s from %q: answer of %q, who sees %q, %v; want %q", c.network, c.to, c.from, name, seen, err, c.seen)
		}
	}

	testhost.Check(t, b.Detach(ctx, "server"))
	if _, _, err := testhost.Ask(t, out, "tcp", "198.51.100.1:8080"); err == nil {
		t.Error("the host port is open after its pod has gone")
	}
}

// A client that keeps sending keeps its tracking entry alive, and with it the way to a pod that is not there any more.
func TestUDPClientsFollowTheHostPortToTheNextPod(t *testing.T) {
	out := testhost.Outside(t)
	b := open(t, Config{Name: "brudp", StateDir: t.TempDir()})
	var c net.Conn
	testhost.In(t, out, func() (err error) { c, err = net.Dial("udp", "198.51.100.1:8053"); return err })
	defer c.Close()
	c.Write([]byte("nobody is there yet"))
	for _, name := range []string{"first", "second"} {
		p := attach(t, b, name, udp(8053, 53))
		testhost.Serve(t, p.NetNS, "udp4", p.v4()+":53", name)
		got := ""
		for deadline := time.Now().Add(30 * time.Second); got == "" && time.Now().Before(deadline); {
			c.Write([]byte("hello"))
			c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			buf := make([]byte, 64)
			if n, err := c.Read(buf); err == nil {
				got, _, _ = strings.Cut(string(buf[:n]), " ")
			}
		}
		if got != name {
			t.Fatalf("answer of %q, want %q", got, name)
		}
		testhost.Check(t, b.Detach(ctx, name))
		c.Write([]byte("nobody is there any more"))
	}
}

// TestUDPHostPortsForgetNoConnectionsOfOthers: those of other pods to the same port of hosts outside, and those of
// another pod's host port with the same number at another address. Seen to fail with any destination matched at attach,
// with any source of the answers matched at detach, with the address of a host port left out, and with nothing matched.
func TestUDPHostPortsForgetNoConnectionsOfOthers(t *testing.T) {
	out := testhost.Outside(t)
	b := open(t, Config{Name: "brothers", StateDir: t.TempDir()})
	client := attach(t, b, "client")
	testhost.Serve(t, out, "udp4", "198.51.100.2:8053", "outside")
	testhost.Serve(t, out, "udp6", "[2001:db8:51::2]:8053", "outside")
	tracked := func(dst string) (found bool) {
		t.Helper()
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			testhost.Check(t, err)
			for _, f := range flows {
				found = found || net.JoinHostPort(f.Forward.DstIP.String(), strconv.Itoa(int(f.Forward.DstPort))) == dst
			}
		}
		return found
	}
	others := []string{"198.51.100.2:8053", "[2001:db8:51::2]:8053"}
	for _, to := range others {
		if name, _, err := testhost.Ask(t, client.NetNS, "udp", to); err != nil || name != "outside" {
			t.Fatalf("%s: %q, %v", to, name, err)
		}
	}
	still := func(when string) {
		t.Helper()
		for _, to := range others {
			if !tracked(to) {
				t.Errorf("%s: the connection to %s was forgotten", when, to)
			}
		}
	}
	still("at first")
	attach(t, b, "server", udp(8053, 53))
	still("a pod with that host port came")
	testhost.Check(t, b.Detach(ctx, "server"))
	still("it went")

	foreign := udp(8053, 53) // an address that is not the node's
	foreign.HostIP = "198.51.100.2"
	attach(t, b, "foreign", foreign)
	still("a pod with another host's address came")
	testhost.Check(t, b.Detach(ctx, "foreign"))
	still("it went")

	at := udp(8054, 53)
	at.HostIP = b.pods.pools[0].gateway.String()
	kept := attach(t, b, "kept", at)
	testhost.Serve(t, kept.NetNS, "udp4", kept.v4()+":53", "kept")
	others = []string{at.HostIP + ":8054"}
	if name, _, err := testhost.Ask(t, client.NetNS, "udp", others[0]); err != nil || name != "kept" {
		t.Fatalf("%q, %v", name, err)
	}
	at.HostIP = "198.51.100.1"
	gone := attach(t, b, "gone", at)
	testhost.Serve(t, gone.NetNS, "udp4", gone.v4()+":53", "gone")
	if name, _, err := testhost.Ask(t, client.NetNS, "udp", "198.51.100.1:8054"); err != nil || name != "gone" {
		t.Fatalf("%q, %v", name, err)
	}
	testhost.Check(t, b.Detach(ctx, "gone"))
	still("a pod with the port at another address went")
	if tracked("198.51.100.1:8054") {
		t.Error("the connection to the pod that has gone is still there")
	}
}

// Seen to fail with the error returned by attach and by openAssigned.
func TestAKernelThatForgetsNoConnectionsKeepsNoPodOut(t *testing.T) {
	was := deleteFlows
	t.Cleanup(func() { deleteFlows = was }) // once the bridge is closed
	var asked atomic.Int32
	deleteFlows = func(netlink.ConntrackTableType, netlink.InetFamily, ...netlink.CustomConntrackFilter) (uint, error) {
		asked.Add(1)
		return 0, unix.EINVAL // of a kernel without nf_conntrack_netlink
	}
	b := open(t, Config{Name: "brflow", StateDir: t.TempDir()})
	attach(t, b, "new", udp(8053, 53))
	prepared := Endpoint{ID: "prepared", NetNS: testhost.Namespace(t)}
	testhost.Check(t, b.Prepare(ctx, prepared))
	prepared.Ports = []model.PortMapping{udp(8054, 53)}
	_, err := b.Attach(ctx, prepared)
	testhost.Check(t, err)
	if n := asked.Load(); n != 2 {
		t.Errorf("the kernel was asked %d times, want once for each pod", n)
	}
	testhost.Check(t, b.Detach(ctx, "new"))
	testhost.Check(t, b.Detach(ctx, "prepared"))
}

func TestAPodCannotReachTheHostsLoopback(t *testing.T) {
	b := open(t, Config{Name: "brguard", StateDir: t.TempDir()})
	p := attach(t, b, "p")
	testhost.Serve(t, "", "tcp4", "127.0.0.1:8002", "host")
	testhost.In(t, p.NetNS, func() error {
		// What root in a pod can do: send 127.0.0.1 out to the node.
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := setSysctl("net/ipv4/conf/eth0/route_localnet", "1"); err != nil {
			return err
		}
		addrs, err := netlink.AddrList(lo, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if err := netlink.AddrDel(lo, &a); err != nil {
				return err
			}
		}
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: l.Attrs().Index, Gw: b.pods.pools[0].gateway.AsSlice(), Dst: &net.IPNet{
				IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(32, 32),
			},
		})
	})
	if name, _, err := testhost.Ask(t, p.NetNS, "tcp", "127.0.0.1:8002"); err == nil {
		t.Errorf("%s answered", name)
	}
}

func TestFiftyAtOnceGetAddressesOfTheirOwn(t *testing.T) {
	b := open(t, Config{Name: "brmany", StateDir: t.TempDir()})
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[netip.Addr]string{}
	for i := range 50 {
		id := fmt.Sprint("pod", i)
		e := Endpoint{ID: id, Pod: id, NetNS: testhost.Namespace(t), Ports: []model.PortMapping{tcp(int32(20000+i), 80)}}
		wg.Go(func() {
			addrs, err := b.Attach(ctx, e)
			if err != nil || len(addrs) != 2 {
				t.Errorf("%s: %v, %v", id, addrs, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, a := range addrs {
				if other := seen[a]; other != "" {
					t.Errorf("%s and %s both have %s", id, other, a)
				}
				seen[a] = id
			}
		})
	}
	wg.Wait()
	if whole, err := func() (bool, error) {
		b.segment.Lock()
		defer b.segment.Unlock()
		return b.segment.intact()
	}(); err != nil || !whole {
		t.Errorf("the table is not whole (%v)", err)
	}
	for i := range 50 {
		wg.Go(func() {
			if err := b.Detach(ctx, fmt.Sprint("pod", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestAFullRangeSaysSo(t *testing.T) {
	b := open(t, Config{Name: "brfull", StateDir: t.TempDir(),
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/29")}})
	for i := range 5 { // eight, less network, broadcast and gateway
		attach(t, b, fmt.Sprint("pod", i))
	}
	e := Endpoint{ID: "late", Pod: "default/late", NetNS: testhost.Namespace(t)}
	if _, err := b.Attach(ctx, e); !errdefs.IsResourceExhausted(err) {
		t.Fatalf("got %v", err)
	}
	testhost.Check(t, b.Detach(ctx, "pod3"))
	addrs, err := b.Attach(ctx, e)
	if err != nil || addrs[0].String() != "10.77.0.5" {
		t.Errorf("%v, %v", addrs, err)
	}
}

// TestAnAddressIsFreeOnlyWhenItsInterfaceIsGone: an endpoint that has just been detached is waited for, by the next
// one that needs its address and by its own successor.
// TestAFullBridgeSaysSo: Linux gives a bridge 1023 ports, and a range may have more addresses. It was seen to fail
// where the kernel's error is passed on, and where something is prepared in place of another.
func TestAFullBridgeSaysSo(t *testing.T) {
	b := open(t, Config{Name: "brports", StateDir: t.TempDir(),
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.79.0.0/20")}})
	attach(t, b, "first")
	prepare(t, b, "waiting")
	bridge, err := netlink.LinkByName("brports")
	testhost.Check(t, err)
	// The interfaces go together, with the namespace that their other ends are in.
	ns, err := os.Open(testhost.Namespace(t))
	testhost.Check(t, err)
	defer ns.Close()
	made := 2
	for ; err == nil; made++ {
		err = netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("brports", made), MasterIndex: bridge.Attrs().Index,
				NumTxQueues: 1, NumRxQueues: 1},
			PeerName: fmt.Sprint("other", made), PeerNamespace: netlink.NsFd(ns.Fd()),
		})
	}
	if !errors.Is(err, unix.EXFULL) || made-1 != maxPorts {
		t.Fatalf("a bridge has %d ports, want %d: %v", made-1, maxPorts, err)
	}
	if err := b.Prepare(ctx, Endpoint{ID: "more", NetNS: testhost.Namespace(t)}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("one more is prepared: %v", err)
	}
	attach(t, b, "second")
	if b.Has("waiting") {
		t.Error("what was prepared has a port still")
	}
	_, err = b.Attach(ctx, Endpoint{ID: "third", NetNS: testhost.Namespace(t)})
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "brports has no port left: it has 1023") {
		t.Errorf("a pod more: %v", err)
	}
	if b.Has("third") {
		t.Error("what was refused is on record")
	}
	testhost.Check(t, b.Detach(ctx, "second"))
	attach(t, b, "third")
}

func TestAnAddressIsFreeOnlyWhenItsInterfaceIsGone(t *testing.T) {
	b := open(t, Config{Name: "brleave", StateDir: t.TempDir(),
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/30")}})
	for i := range 20 { // of four addresses, one is a pod's
		id := fmt.Sprint("pod", i/2)
		p := attach(t, b, id)
		if p.v4() != "10.77.0.2" {
			t.Fatalf("address %s", p.v4())
		}
		links, err := whole(netlink.LinkList)
		testhost.Check(t, err)
		have := 0
		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Name, vethPrefix("brleave")) {
				have++
			}
		}
		if have != 1 {
			t.Fatalf("%d interfaces for one pod", have)
		}
		testhost.Check(t, b.Detach(ctx, id))
		testhost.Check(t, b.Detach(ctx, id))
		testhost.Unpin(p.NetNS)
	}
}

// TestAnInterfaceGoesWithItsNamespace: the kernel removes it then, and berthd does where somebody else keeps the
// namespace. Seen to fail without the message that the interface is gone, and without an end of the wait for it.
func TestAnInterfaceGoesWithItsNamespace(t *testing.T) {
	b := open(t, Config{Name: "brgoes", StateDir: t.TempDir()})
	for _, c := range []struct {
		name string
		kept bool // the namespace
		wait time.Duration
	}{{"ended", false, time.Hour}, {"kept", true, 10 * time.Millisecond}} {
		p := attach(t, b, c.name)
		b.endWait = c.wait
		testhost.Check(t, b.Detach(ctx, c.name))
		if !c.kept {
			testhost.Unpin(p.NetNS)
		}
		testhost.Eventually(t, "the endpoint is gone", func() error {
			there, err := hasLink(vethName("brgoes", c.name))
			if err == nil && (there || b.Has(c.name)) {
				err = fmt.Errorf("%s: the interface is there: %t, the record: %t", c.name, there, b.Has(c.name))
			}
			return err
		})
	}
}

// TestOnlyPodsOfIPv6HaveALinkLocalAddress: each tells all ports of the bridge of it, several times.
func TestOnlyPodsOfIPv6HaveALinkLocalAddress(t *testing.T) {
	for name, cidrs := range map[string][]netip.Prefix{
		"br4": {netip.MustParsePrefix("10.98.1.0/24")},
		"br6": {netip.MustParsePrefix("10.98.2.0/24"), netip.MustParsePrefix("fd00:98:2::/64")},
	} {
		p := attach(t, open(t, Config{Name: name, StateDir: t.TempDir(), CIDRs: cidrs}), "p")
		testhost.In(t, p.NetNS, func() error {
			link, err := netlink.LinkByName(Interface)
			if err != nil {
				return err
			}
			addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
			local := slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() })
			if want := len(cidrs) == 2; err == nil && local != want {
				t.Errorf("%s: a link-local address: %t, want %t: %v", name, local, want, addrs)
			}
			return err
		})
	}
}

// TestAKillInTheMiddleOfADetachLosesNothing: the record outlives the interface.
func TestAKillInTheMiddleOfADetachLosesNothing(t *testing.T) {
	b := open(t, Config{Name: "brkill", StateDir: t.TempDir()})
	for i := range 10 {
		attach(t, b, fmt.Sprint("pod", i))
	}
	for i := range 10 {
		testhost.Check(t, b.Detach(ctx, fmt.Sprint("pod", i)))
	}
	links, err := whole(netlink.LinkList)
	testhost.Check(t, err)
	records, _ := filepath.Glob(filepath.Join(b.cfg.StateDir, endpointsDir, "*"))
	// Looked at in this order, every interface that was there has its record, or was gone with it meanwhile.
	for _, l := range links {
		name := l.Attrs().Name
		if !strings.HasPrefix(name, vethPrefix("brkill")) || slices.ContainsFunc(records, func(r string) bool {
			return vethName("brkill", strings.TrimSuffix(filepath.Base(r), ".json")) == name
		}) {
			continue
		}
		if _, err := netlink.LinkByName(name); !isNoLink(err) {
			t.Errorf("interface %s has no record (%v)", name, err)
		}
	}
	testhost.Check(t, reconcile(b, nil))
	nothingLeft(t, b.cfg)
}

func TestHostPortConflicts(t *testing.T) {
	b := open(t, Config{Name: "brconf", StateDir: t.TempDir()})
	attach(t, b, "holder", tcp(8080, 80), model.PortMapping{HostPort: 9090, ContainerPort: 80, HostIP: "127.0.0.1"})
	testhost.Serve(t, "", "tcp", "127.0.0.1:7070", "host")
	testhost.Serve(t, "", "udp", "127.0.0.1:7053", "host")
	client, err := net.Dial("tcp", "127.0.0.1:7070") // a port that a client has is not served
	testhost.Check(t, err)
	defer client.Close()
	local := int32(client.LocalAddr().(*net.TCPAddr).Port)
	at := func(ip string, port int32) model.PortMapping {
		return model.PortMapping{HostPort: port, ContainerPort: 1, HostIP: ip}
	}
	for _, c := range []struct {
		port model.PortMapping
		want string
	}{
		{tcp(8080, 81), "host port 8080/tcp is taken by pod default/holder (holder)"},
		{at("127.0.0.1", 8080), "taken by pod default/holder"},
		{at("", 9090), "taken by pod default/holder"},
		{at("127.0.0.2", 9090), ""},
		{at("::1", 9090), ""},
		{udp(8080, 80), ""},
		{tcp(7070, 80), "host port 7070/tcp is in use by a process of the host"},
		{udp(7053, 80), "host port 7053/udp is in use by a process of the host"},
		{tcp(local, 80), ""},
		{at("192.0.2.77", 7070), ""}, // an address that the node does not have yet
	} {
		e := Endpoint{ID: "x", Pod: "default/x", NetNS: testhost.Namespace(t), Ports: []model.PortMapping{c.port}}
		_, err := b.Attach(ctx, e)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.port, err)
		case c.want != "" && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: got %v, want %s", c.port, err, c.want)
		case c.want != "" && b.Has("x"):
			t.Errorf("%+v: something is left", c.port)
		}
		testhost.Check(t, b.Detach(ctx, "x"))
	}
}

// TestAHostIPOfAnotherHostTakesNothing: a pod that names another host's address, such as that of a cloud's metadata or
// of the API server, does not get what the node, its pods and others by way of the node send there. Once the address is
// the node's, it does. Seen to fail without the look for local addresses in dnatAt.
func TestAHostIPOfAnotherHostTakesNothing(t *testing.T) {
	out := testhost.Outside(t)
	b := open(t, Config{Name: "brother", StateDir: t.TempDir()})
	at := func(ip string, port int32) model.PortMapping {
		return model.PortMapping{HostPort: port, ContainerPort: 80, HostIP: ip}
	}
	thief := attach(t, b, "thief", at("198.51.100.2", 8080), at("2001:db8:51::2", 8080), at("192.0.2.77", 8080))
	client := attach(t, b, "client")
	testhost.Serve(t, thief.NetNS, "tcp", ":80", "thief")
	testhost.Serve(t, out, "tcp", ":8080", "outside")
	for _, from := range []string{"", client.NetNS} {
		for _, to := range []string{"198.51.100.2:8080", "[2001:db8:51::2]:8080"} {
			if name, _, err := testhost.Ask(t, from, "tcp", to); err != nil || name != "outside" {
				t.Errorf("%s from %q: answer of %q, %v; want outside", to, from, name, err)
			}
		}
	}
	lo, err := netlink.LinkByName("lo")
	testhost.Check(t, err)
	later, err := netlink.ParseAddr("192.0.2.77/32")
	testhost.Check(t, err)
	testhost.Check(t, netlink.AddrAdd(lo, later))
	defer netlink.AddrDel(lo, later)
	for _, from := range []string{"", client.NetNS} {
		if name, _, err := testhost.Ask(t, from, "tcp", "192.0.2.77:8080"); err != nil || name != "thief" {
			t.Errorf("an address that came later, from %q: answer of %q, %v; want thief", from, name, err)
		}
	}
}

func TestBadPortsAreRefused(t *testing.T) {
	for _, p := range []model.PortMapping{
		{Protocol: "icmp", HostPort: 1, ContainerPort: 1},
		{HostPort: 65536, ContainerPort: 1},
		{HostPort: -1, ContainerPort: 1},
		{HostPort: 1, ContainerPort: 0},
		{HostPort: 1, ContainerPort: 70000},
		{HostPort: 1, ContainerPort: 1, HostIP: "localhost"},
		{HostPort: 1, ContainerPort: 1, HostIP: "fe80::1%eth0"},
	} {
		if err := ValidatePorts([]model.PortMapping{p}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	if _, err := hostPorts([]model.PortMapping{{HostPort: 1, ContainerPort: 1, HostIP: "::1"}},
		addrs); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	if _, err := hostPorts([]model.PortMapping{tcp(1, 1), tcp(1, 2)}, addrs); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	if got, err := hostPorts([]model.PortMapping{tcp(1, 1), tcp(1, 1)}, addrs); err != nil || len(got) != 1 {
		t.Error(got, err)
	}
}

// TestMappingsThatOverlapAreRefused in either order, and others are not.
func TestMappingsThatOverlapAreRefused(t *testing.T) {
	at := func(protocol model.Protocol, ip string, host, container int32) model.PortMapping {
		return model.PortMapping{Protocol: protocol, HostIP: ip, HostPort: host, ContainerPort: container}
	}
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	for _, c := range []struct {
		one, other model.PortMapping
		keys       int // 0: refused
	}{
		{at("tcp", "", 1, 1), at("udp", "", 1, 2), 4},
		{at("tcp", "", 1, 1), at("tcp", "", 2, 1), 4},
		{at("tcp", "", 1, 1), at("tcp", "", 1, 2), 0},
		{at("tcp", "", 1, 1), at("", "", 1, 1), 2},
		{at("tcp", "", 1, 1), at("tcp", "192.0.2.1", 1, 1), 0},
		{at("tcp", "", 1, 1), at("tcp", "2001:db8::1", 1, 1), 0},
		{at("tcp", "0.0.0.0", 1, 1), at("tcp", "192.0.2.1", 1, 2), 0},
		{at("tcp", "0.0.0.0", 1, 1), at("tcp", "2001:db8::1", 1, 2), 2},
		{at("tcp", "0.0.0.0", 1, 1), at("tcp", "::", 1, 2), 2},
		{at("tcp", "192.0.2.1", 1, 1), at("tcp", "192.0.2.2", 1, 2), 2},
		{at("tcp", "192.0.2.1", 1, 1), at("tcp", "192.0.2.1", 1, 2), 0},
		{at("tcp", "192.0.2.1", 1, 1), at("tcp", "::ffff:192.0.2.1", 1, 1), 1},
	} {
		for _, ports := range [][]model.PortMapping{{c.one, c.other}, {c.other, c.one}} {
			got, err := hostPorts(ports, addrs)
			if len(got) != c.keys || errdefs.IsInvalidArgument(err) != (c.keys == 0) {
				t.Errorf("%+v: %v, %v", ports, got, err)
			}
		}
	}
}

// TestAPodWithManyHostPortsHoldsNobodyUp: its mappings are looked through under the lock that all pods' network needs.
// Seen to fail, with 18 s in each hostPorts and 20 s in checkConflicts, where each is compared with each.
func TestAPodWithManyHostPortsHoldsNobodyUp(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	var low, high []model.PortMapping
	for port := range int32(30_000) {
		low, high = append(low, udp(port+1, 53)), append(high, udp(port+30_001, 53))
	}
	began := time.Now()
	es := &endpoints{records: map[string]*record{}}
	for id, ports := range map[string][]model.PortMapping{"low": low, "high": high} {
		r := &record{ID: id}
		var err error
		r.hostPorts, err = hostPorts(ports, addrs)
		testhost.Check(t, errors.Join(err, es.checkConflicts(r)))
		if len(r.hostPorts) != 60_000 {
			t.Errorf("%d host ports, want 60000", len(r.hostPorts))
		}
		es.records[id] = r
		t.Log(time.Since(began))
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestBadRangesAreRefused(t *testing.T) {
	for _, s := range []string{"10.0.0.1/16", "10.0.0.0/31", "10.0.0.0/16,10.1.0.0/16", "224.0.0.0/8", "fe80::/64"} {
		var cidrs []netip.Prefix
		for part := range strings.SplitSeq(s, ",") {
			cidrs = append(cidrs, netip.MustParsePrefix(part))
		}
		if err := CheckCIDRs(cidrs); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// crash is a daemon that ends without a word: a second Bridge takes over what is on disk and in the kernel.
func crash(t *testing.T, b *Bridge) *Bridge {
	t.Helper()
	b.stop()
	b.done.Wait()
	next, err := Open(b.cfg)
	testhost.Check(t, err)
	return next
}

func TestARestartKeepsPodsAndTheirAddresses(t *testing.T) {
	out := testhost.Outside(t)
	dir := t.TempDir()
	b := open(t, Config{Name: "brkeep", StateDir: dir})
	p := attach(t, b, "p", tcp(8080, 80))
	gone := attach(t, b, "gone", tcp(8081, 80))
	testhost.Serve(t, p.NetNS, "tcp", ":80", "p")

	next := crash(t, b)
	defer next.Close()
	if name, _, err := testhost.Ask(t, out, "tcp", "198.51.100.1:8080"); err != nil || name != "p" {
		t.Fatalf("while the daemon is away: %q, %v", name, err)
	}
	testhost.Check(t, reconcile(next, map[string]Endpoint{"p": p.Endpoint}))
	if name, _, err := testhost.Ask(t, out, "tcp", "198.51.100.1:8080"); err != nil || name != "p" {
		t.Fatalf("after the restart: %q, %v", name, err)
	}
	if next.Has("gone") {
		t.Error("a dead pod is on record")
	}
	if _, err := netlink.LinkByName(vethName("brkeep", "gone")); !isNoLink(err) {
		t.Errorf("a dead pod's interface: %v", err)
	}
	// A third pod does not get the address of one that lives, and a pod that starts again gets its own.
	other := attach(t, next, "other")
	if other.addrs[0] == p.addrs[0] || other.addrs[0] == gone.addrs[0] {
		t.Errorf("%s was given twice", other.addrs[0])
	}
	testhost.Unpin(p.NetNS)
	again, err := next.Attach(ctx, Endpoint{ID: "p", Pod: "default/p", NetNS: testhost.Namespace(t), Ports: p.Ports})
	if err != nil || again[0] != p.addrs[0] || again[1] != p.addrs[1] {
		t.Errorf("%v, %v; want %v", again, err, p.addrs)
	}
	testhost.Check(t, reconcile(next, nil))
	b.pods.mu.Lock()
	b.pods.records = map[string]*record{}
	b.pods.mu.Unlock()
}

func TestLeftoversOfACrashGo(t *testing.T) {
	dir := t.TempDir()
	b := open(t, Config{Name: "brcrash", StateDir: dir})
	p := attach(t, b, "p", tcp(8080, 80))
	// In the middle of a set-up: a record without anything; a veth without a record; a record that is cut off.
	testhost.Check(t, writeFile(b.pods.recordPath("early"), &record{
		ID: "early", Link: vethName("brcrash", "early"), Addresses: []netip.Addr{netip.MustParseAddr("10.60.9.9")},
	}))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = vethName("brcrash", "stray")
	testhost.Check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "straypeer"}))
	testhost.Check(t, os.WriteFile(b.pods.recordPath("torn"), []byte(`{"id":"to`), 0o600))
	testhost.Check(t, os.WriteFile(b.pods.recordPath("torn")+".tmp", nil, 0o600))
	testhost.Unpin(p.NetNS)

	next := crash(t, b)
	testhost.Check(t, reconcile(next, nil))
	testhost.Check(t, next.Close())
	nothingLeft(t, b.cfg)
	b.pods.mu.Lock()
	b.pods.records = map[string]*record{}
	b.pods.mu.Unlock()
}

func TestWhatOthersRemoveComesBack(t *testing.T) {
	out := testhost.Outside(t)
	b := open(t, Config{Name: "brfix", StateDir: t.TempDir()})
	p := attach(t, b, "p", tcp(8080, 80))
	testhost.Serve(t, p.NetNS, "tcp", ":80", "p")
	live := map[string]Endpoint{"p": p.Endpoint}
	answers := func(when string) {
		t.Helper()
		if name, _, err := testhost.Ask(t, out, "tcp", "198.51.100.1:8080"); err != nil || name != "p" {
			t.Fatalf("%s: %q, %v", when, name, err)
		}
	}
	flush := func() {
		c, err := nftables.New()
		testhost.Check(t, err)
		c.FlushRuleset()
		testhost.Check(t, c.Flush())
	}
	answers("at first")
	flush()
	if _, _, err := testhost.Ask(t, out, "tcp", "198.51.100.1:8080"); err == nil {
		t.Fatal("the ruleset was not flushed")
	}
	testhost.Check(t, reconcile(b, live))
	answers("after nft flush ruleset")

	flush()
	b.check(ctx)
	answers("after nft flush ruleset and the watch")

	testhost.Check(t, removeLink("brfix"))
	b.check(ctx)
	answers("after the bridge was deleted")

	testhost.Check(t, removeLink("brfix"))
	q := attach(t, b, "q", tcp(8081, 80))
	answers("after the bridge was deleted and another pod came")
	testhost.Check(t, b.Detach(ctx, q.ID))

	testhost.Check(t, removeLink(vethName("brfix", "p")))
	testhost.Check(t, reconcile(b, live))
	answers("after the veth was deleted")

	flush()
	attach(t, b, "r", tcp(8082, 80))
	answers("after nft flush ruleset and another pod came")
	flush()
	testhost.Check(t, b.Detach(ctx, "r"))
	b.check(ctx)
	answers("after nft flush ruleset and another pod went")
}

// TestAPodOfABridgeThatWasMadeAnewIsPutOnIt, also where the attempt to do so with the new bridge failed. One that is on
// a bridge of somebody else is put back too. Seen to fail without rejoin.
func TestAPodOfABridgeThatWasMadeAnewIsPutOnIt(t *testing.T) {
	b := open(t, Config{Name: "brnew", StateDir: t.TempDir()})
	p := attach(t, b, "p")
	testhost.Serve(t, p.NetNS, "tcp", ":80", "p")
	answers := func(when string) {
		t.Helper()
		b.check(ctx)
		if name, _, err := testhost.Ask(t, "", "tcp", p.v4()+":80"); err != nil || name != "p" {
			t.Errorf("%s: %q, %v", when, name, err)
		}
	}
	testhost.Check(t, removeLink("brnew"))
	b.segment.Lock()
	b.segment.up = false
	err := b.segment.build(ctx)
	b.segment.Unlock()
	testhost.Check(t, err)
	answers("on a bridge that was made without it")

	other := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "brothers"}}
	testhost.Check(t, netlink.LinkAdd(other))
	defer netlink.LinkDel(other)
	port := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: linkIndex(t, b, "p")}}
	testhost.Check(t, netlink.LinkSetMaster(port, other))
	b.pods.mu.Lock()
	b.pods.records["p"].restored = time.Time{}
	b.pods.mu.Unlock()
	answers("after it was put on another bridge")
}

// Seen to fail without the look at the sysctls in intact.
func TestForwardingThatOthersSwitchOffIsSwitchedOnAgain(t *testing.T) {
	b := open(t, Config{Name: "brfwd", StateDir: t.TempDir()})
	if p := attach(t, b, "p"); len(p.addrs) != 2 {
		t.Fatalf("addresses: %v, want one of each family", p.addrs)
	}
	for _, path := range []string{
		"net/ipv4/ip_forward", "net/ipv4/conf/brfwd/route_localnet", "net/ipv6/conf/all/forwarding",
	} {
		testhost.Check(t, setSysctl(path, "0"))
		b.check(ctx)
		if on, err := sysctl(path); err != nil || on != "1" {
			t.Errorf("%s is %q after the watch, %v", path, on, err)
		}
	}
}

// Seen to fail without SetSysctls in restore; and, for one of the pods each, where reserve, assign or reconcile does
// not keep the sysctls.
func TestAnInterfaceThatComesBackHasThePodsSysctls(t *testing.T) {
	b := open(t, Config{Name: "brsys", StateDir: t.TempDir()})
	live := map[string]Endpoint{}
	for _, id := range []string{"new", "prepared", "earlier"} {
		e := Endpoint{ID: id, NetNS: testhost.Namespace(t), Sysctls: map[string]string{"net.ipv4.conf.eth0.arp_ignore": "2"}}
		if id == "prepared" {
			testhost.Check(t, b.Prepare(ctx, Endpoint{ID: id, NetNS: e.NetNS}))
		}
		_, err := b.Attach(ctx, e)
		testhost.Check(t, err)
		live[id] = e
	}
	comesBack := func(b *Bridge, id string) {
		t.Helper()
		testhost.Check(t, removeLink(vethName("brsys", id)))
		b.check(ctx)
		testhost.Eventually(t, "arp_ignore of pod "+id+" is 2", func() error {
			return namespace.Do(live[id].NetNS, func() error {
				if value, err := sysctl("net/ipv4/conf/eth0/arp_ignore"); err != nil || value != "2" {
					return fmt.Errorf("it is %q, %v", value, err)
				}
				return nil
			})
		})
	}
	comesBack(b, "new")
	comesBack(b, "prepared")
	next := crash(t, b)
	defer next.Close()
	testhost.Check(t, reconcile(next, live))
	comesBack(next, "earlier")
}

// TestAnInterfaceThatComesBackByHalfIsMadeAgain: what could not be completed, and what a kill left of it, is lost like
// one that is gone. Seen to fail without Restoring in lost, in restore and in reconcile.
func TestAnInterfaceThatComesBackByHalfIsMadeAgain(t *testing.T) {
	testhost.Outside(t)
	b := open(t, Config{Name: "brhalf", StateDir: t.TempDir()})
	p := attach(t, b, "p")
	testhost.Serve(t, "", "tcp", "198.51.100.1:8001", "host")
	r := b.pods.records["p"]
	hasWayOut := func(when string) {
		t.Helper()
		if name, _, err := testhost.Ask(t, p.NetNS, "tcp", "198.51.100.1:8001"); err != nil || name != "host" {
			t.Errorf("%s: %q, %v", when, name, err)
		}
	}
	lo := &netlink.Route{LinkIndex: loopback, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
	testhost.Check(t, removeLink(r.Link))
	testhost.In(t, p.NetNS, func() error { return netlink.RouteAdd(lo) }) // where the pod's default route has to be
	if err := b.restore(ctx, r, p.NetNS); err == nil {
		t.Fatal("there is a second default route")
	}
	testhost.In(t, p.NetNS, func() error { return netlink.RouteDel(lo) })
	b.check(ctx)
	hasWayOut("after an attempt that failed")

	b.stop()
	b.done.Wait()
	testhost.Check(t, removeLink(r.Link))
	ns, err := openNamespace(p.NetNS)
	testhost.Check(t, err)
	defer ns.Close()
	v := veth{name: r.Link, alias: r.ID, mac: podMAC(r.Addresses[0]), mtu: defaultMTU, master: b.segment.index, ipv6: true}
	testhost.Check(t, b.pods.setRestoring(r, true))
	testhost.Check(t, v.create(ns))
	testhost.Check(t, v.enslave())
	half := linkIndex(t, b, "p")
	next := crash(t, b)
	defer next.Close()
	testhost.Check(t, reconcile(next, map[string]Endpoint{"p": p.Endpoint}))
	index := linkIndex(t, next, "p")
	if index == half {
		t.Error("Reconcile leaves what a kill has left")
	}
	hasWayOut("after a kill")
	again := crash(t, next)
	defer again.Close()
	testhost.Check(t, reconcile(again, map[string]Endpoint{"p": p.Endpoint}))
	if now := linkIndex(t, again, "p"); now != index {
		t.Errorf("the interface %d, which is complete, was made again: %d", index, now)
	}
}

// What others remove is noticed when it happens, and in place again within seconds. Seen to fail with each of the two
// subscriptions left out and an interval of a minute between checks, and, for the veth and for its place on the bridge,
// without the look for lost interfaces, and for those that are no port.
func TestWhatOthersRemoveComesBackByItself(t *testing.T) {
	out := testhost.Outside(t)
	b := open(t, Config{Name: "brself", StateDir: t.TempDir()})
	p := attach(t, b, "p", tcp(8080, 80))
	testhost.Serve(t, p.NetNS, "tcp", ":80", "p")
	q := attach(t, b, "q", tcp(8081, 80)) // one that loses its interface twice has to wait
	testhost.Serve(t, q.NetNS, "tcp", ":80", "q")
	answers := func() bool {
		for to, want := range map[string]string{"198.51.100.1:8080": "p", "198.51.100.1:8081": "q"} {
			if name, _, err := testhost.Ask(t, out, "tcp", to); err != nil || name != want {
				return false
			}
		}
		return true
	}
	if !answers() {
		t.Fatal("no answer at first")
	}
	with := func(change func(*nftables.Conn)) func() error {
		return func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			change(c)
			return c.Flush()
		}
	}
	table := ruleset{bridge: "brself"}.table()
	for what, remove := range map[string]func() error{
		"the whole ruleset": with(func(c *nftables.Conn) { c.FlushRuleset() }),
		"the table":         with(func(c *nftables.Conn) { c.DelTable(table) }),
		"the rules":         with(func(c *nftables.Conn) { c.FlushTable(table) }),
		"the bridge":        func() error { return removeLink("brself") },
		"the veth":          func() error { return removeLink(vethName("brself", "p")) },
		"its place on the bridge": func() error {
			return netlink.LinkSetNoMaster(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: linkIndex(t, b, "q")}})
		},
	} {
		time.Sleep(quietTime + quietTime/2) // the repair before this one is told of as well, and looked at
		testhost.Check(t, remove())
		began := time.Now()
		for !answers() {
			if time.Since(began) > 30*time.Second {
				t.Fatalf("%s: is not back", what)
			}
		}
		t.Logf("%s was back after %v", what, time.Since(began).Round(100*time.Millisecond))
	}
}

func TestTheBridgeGoesWithTheLastPod(t *testing.T) {
	cfg := Config{Name: "brlast", StateDir: t.TempDir(), Linger: 100 * time.Millisecond}
	b := open(t, cfg)
	b.endWait = 0 // the namespaces of the pods stay until the test ends
	attach(t, b, "p")
	if err := b.Purge(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("purged under a pod: %v", err)
	}
	testhost.Check(t, b.Detach(ctx, "p"))
	testhost.Check(t, b.Detach(ctx, "p"))
	attach(t, b, "q") // in time
	time.Sleep(200 * time.Millisecond)
	if _, err := netlink.LinkByName("brlast"); err != nil {
		t.Fatal(err)
	}
	testhost.Check(t, b.Detach(ctx, "q"))
	testhost.Eventually(t, "the bridge goes", func() error {
		if _, err := netlink.LinkByName("brlast"); !isNoLink(err) {
			return fmt.Errorf("bridge brlast is there (%w)", errors.Join(errdefs.ErrAlreadyExists, err))
		}
		return nil
	})
	b.expire() // waits for the other, which has begun
	nothingLeft(t, cfg)
}

func TestAFailedSetUpLeavesNothing(t *testing.T) {
	b := open(t, Config{Name: "brfail", StateDir: t.TempDir()})
	attach(t, b, "other")
	path := testhost.Namespace(t)
	testhost.In(t, path, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "eth0"
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	})
	_, err := b.Attach(ctx, Endpoint{ID: "p", Pod: "default/p", NetNS: path, Ports: []model.PortMapping{tcp(8080, 80)}})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("got %v", err)
	}
	if _, err := b.Attach(ctx, Endpoint{ID: "p", NetNS: filepath.Join(t.TempDir(), "none")}); !errdefs.IsNotFound(err) {
		t.Errorf("no namespace: %v", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.Attach(cancelled, Endpoint{ID: "p", NetNS: testhost.Namespace(t)}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := netlink.LinkByName(vethName("brfail", "p")); !isNoLink(err) || b.Has("p") {
		t.Errorf("something is left: %v", err)
	}
}

func TestAnInterfaceThatIsNotOursIsLeftAlone(t *testing.T) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "brforeign"
	testhost.Check(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	defer removeLink("brforeign")
	b, err := Open(Config{Name: "brforeign", StateDir: t.TempDir()})
	testhost.Check(t, err)
	_, err = b.Attach(ctx, Endpoint{ID: "p", NetNS: testhost.Namespace(t)})
	if !errdefs.IsFailedPrecondition(err) || b.Health() == nil {
		t.Errorf("got %v, health %v", err, b.Health())
	}
	testhost.Check(t, reconcile(b, nil))
	testhost.Check(t, b.Close())
	if _, err := netlink.LinkByName("brforeign"); err != nil {
		t.Error(err)
	}
}

// TestARangeThatAnotherInterfaceHasIsRefused, as that of another runtime's bridge is that was not removed. As soon as
// it is, the network is ready again, although no pod asks for it. Seen to fail without the look at the node's routes
// (the pod is attached and cannot be reached), without the one before there is a pod, and without the further try.
func TestARangeThatAnotherInterfaceHasIsRefused(t *testing.T) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "cni-left"
	left := &netlink.Bridge{LinkAttrs: attrs}
	testhost.Check(t, netlink.LinkAdd(left))
	defer removeLink("cni-left")
	addr, err := netlink.ParseAddr("10.245.7.1/24")
	testhost.Check(t, err)
	testhost.Check(t, netlink.AddrAdd(left, addr))
	testhost.Check(t, netlink.LinkSetUp(left))
	for cidr, refused := range map[string]bool{"10.245.7.0/24": true, "10.245.0.0/16": false} {
		b := open(t, Config{Name: "brleft", StateDir: t.TempDir(), CIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}})
		e := Endpoint{ID: "p", NetNS: testhost.Namespace(t)}
		if err := b.Health(); (err != nil) != refused {
			t.Errorf("%s: before there is a pod: %v", cidr, err)
		}
		_, err := b.Attach(ctx, e)
		if !refused { // most of the range is the bridge's
			testhost.Check(t, err)
			testhost.Check(t, b.Detach(ctx, "p"))
			testhost.Check(t, b.Close())
			continue
		}
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "ip link delete cni-left") {
			t.Errorf("%s: %v", cidr, err)
		}
		if _, err := netlink.LinkByName("brleft"); !isNoLink(err) {
			t.Errorf("the bridge is there: %v", err)
		}
		b.check(ctx)
		if b.Health() == nil {
			t.Error("the network is ready, and pods would not be reached")
		}
		testhost.Check(t, netlink.LinkSetDown(left)) // its routes are gone
		b.check(ctx)
		testhost.Check(t, b.Health())
		_, err = b.Attach(ctx, e)
		testhost.Check(t, err)
		testhost.Check(t, b.Detach(ctx, "p"))
		testhost.Check(t, b.Close())
		testhost.Check(t, netlink.LinkSetUp(left))
	}
}

// TestRoutesOfATableThatComesBeforeTheMainOne: a VPN with policy routing takes packets to a wide range before the main
// table is asked, which has the bridge's more specific route. Seen to fail with the tables left out of usedPrefixes,
// with wider routes of all tables passed over in checkRoutes, with the rules not asked, without the look of intact, and
// without the last look of buildAll.
func TestRoutesOfATableThatComesBeforeTheMainOne(t *testing.T) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "vpn0"
	vpn := &netlink.Bridge{LinkAttrs: attrs}
	testhost.Check(t, netlink.LinkAdd(vpn))
	t.Cleanup(func() { _ = removeLink("vpn0") })
	testhost.Check(t, netlink.LinkSetUp(vpn))
	const table = 52
	way := &netlink.Route{LinkIndex: vpn.Attrs().Index, Table: table, Dst: &net.IPNet{
		IP: net.IPv4(10, 0, 0, 0), Mask: net.CIDRMask(8, 32),
	}}
	testhost.Check(t, netlink.RouteAdd(way))
	lookIn := func(priority int) *netlink.Rule {
		t.Helper()
		rule := netlink.NewRule()
		rule.Priority, rule.Table, rule.Family = priority, table, netlink.FAMILY_V4
		testhost.Check(t, netlink.RuleAdd(rule))
		t.Cleanup(func() { _ = netlink.RuleDel(rule) })
		return rule
	}
	rule := lookIn(100)

	b := open(t, Config{Name: "brvpn", StateDir: t.TempDir()})
	attach(t, b, "chosen")
	if got := b.pods.pools[0].prefix; got.String() != "172.16.0.0/16" {
		t.Errorf("a bridge chose %s", got)
	}
	testhost.Check(t, b.Detach(ctx, "chosen"))
	testhost.Check(t, b.Close())

	in := []netip.Prefix{netip.MustParsePrefix("10.61.0.0/16")}
	b = open(t, Config{Name: "brvpn", StateDir: t.TempDir(), CIDRs: in})
	e := Endpoint{ID: "p", NetNS: testhost.Namespace(t)}
	refused := func(err error) bool {
		return errdefs.IsFailedPrecondition(err) && strings.Contains(err.Error(), "10.0.0.0/8 to interface vpn0") &&
			strings.Contains(err.Error(), "table 52")
	}
	if err := b.Health(); !refused(err) {
		t.Errorf("before there is a pod: %v", err)
	}
	if _, err := b.Attach(ctx, e); !refused(err) {
		t.Errorf("a pod: %v", err)
	}
	testhost.Check(t, netlink.RuleDel(rule))
	late := lookIn(40000) // after the main one
	b.check(ctx)
	testhost.Check(t, b.Health())
	_, err := b.Attach(ctx, e)
	testhost.Check(t, err)

	rule = lookIn(100)
	b.check(ctx)
	if err := b.Health(); !refused(err) {
		t.Errorf("a VPN that was switched on while pods ran: %v", err)
	}
	testhost.Check(t, netlink.RuleDel(rule))
	b.check(ctx)
	testhost.Check(t, b.Health())
	testhost.Check(t, netlink.RuleDel(late))
	testhost.Check(t, b.Detach(ctx, "p"))
	testhost.Check(t, b.Close())

	// A rule that leads some packets to the main table first says nothing of others: the kernel's answer counts.
	lookIn(100)
	some := netlink.NewRule()
	some.Priority, some.Table, some.Family = 50, unix.RT_TABLE_MAIN, netlink.FAMILY_V4
	some.Src = &net.IPNet{IP: net.IPv4(192, 0, 2, 9), Mask: net.CIDRMask(32, 32)}
	testhost.Check(t, netlink.RuleAdd(some))
	t.Cleanup(func() { _ = netlink.RuleDel(some) })
	b = open(t, Config{Name: "brvpn", StateDir: t.TempDir(), CIDRs: in})
	if _, err := b.Attach(ctx, e); !refused(err) {
		t.Errorf("a pod, with a rule for others: %v", err)
	}
}

// TestRangesThatOnlyOtherTablesHaveAreTheLastChoice: rules may never lead to a table. Seen to fail with the second
// search left out of chooseCIDRs.
func TestRangesThatOnlyOtherTablesHaveAreTheLastChoice(t *testing.T) {
	h, err := routes()
	testhost.Check(t, err)
	defer h.Close()
	for _, private := range []string{"10.0.0.0/8", "172.16.0.0/12"} {
		p := netip.MustParsePrefix(private)
		dst := ipNet(p)
		way := &netlink.Route{Type: unix.RTN_BLACKHOLE, Table: 52, Dst: &dst}
		testhost.Check(t, h.RouteAdd(way))
		defer netlink.RouteDel(way)
	}
	if cidrs, err := chooseCIDRs(h, "brnone", t.TempDir(), false); err != nil || cidrs[0].String() != "10.60.0.0/16" {
		t.Errorf("the choice is %v: %v", cidrs, err)
	}
}

func TestTwoBridgesChooseDifferentRanges(t *testing.T) {
	var bridges [4]*Bridge
	var wg sync.WaitGroup
	for i := range bridges {
		bridges[i] = open(t, Config{Name: fmt.Sprint("brtwo", i), StateDir: t.TempDir()})
		e := Endpoint{ID: "p", NetNS: testhost.Namespace(t)}
		wg.Go(func() {
			if _, err := bridges[i].Attach(ctx, e); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[netip.Prefix]bool{}
	for _, b := range bridges {
		for _, p := range b.pods.pools {
			if seen[p.prefix] {
				t.Errorf("%s was chosen twice", p.prefix)
			}
			seen[p.prefix] = true
		}
	}
}

// podman's interface is there only while one of its containers runs, and has the range then, whoever else has it. Seen
// to fail with 10.88.0.0/16 as the first choice, and, with the ranges before it in use, without ofOthers.
func TestARangeThatIsPodmansIsNotChosen(t *testing.T) {
	h, err := routes()
	testhost.Check(t, err)
	defer h.Close()
	chosen := func() netip.Prefix {
		t.Helper()
		cidrs, err := chooseCIDRs(h, "brnone", t.TempDir(), false)
		testhost.Check(t, err)
		return cidrs[0]
	}
	podmans := netip.MustParsePrefix("10.88.0.0/13") // the first that it takes for other networks included
	if p := chosen(); p.Overlaps(podmans) {
		t.Errorf("the first choice is %s", p)
	}
	for second := range byte(88) {
		way := &netlink.Route{Type: unix.RTN_BLACKHOLE,
			Dst: &net.IPNet{IP: net.IPv4(10, second, 0, 0), Mask: net.CIDRMask(16, 32)}}
		testhost.Check(t, h.RouteAdd(way))
		defer netlink.RouteDel(way)
	}
	if p := chosen(); p.String() != "10.89.0.0/16" {
		t.Errorf("with all ranges before podman's in use, the choice is %s", p)
	}
}

func TestTheNodesRangeIsTakenUp(t *testing.T) {
	dir := t.TempDir()
	b := open(t, Config{Name: "brcidr", StateDir: dir})
	p := attach(t, b, "p")
	want := []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}
	if err := b.SetCIDRs(ctx, want); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("under pods: %v", err)
	}
	testhost.Check(t, b.Detach(ctx, p.ID))
	testhost.Check(t, b.SetCIDRs(ctx, want))
	if q := attach(t, b, "q"); len(q.addrs) != 1 || !want[0].Contains(q.addrs[0]) {
		t.Errorf("%v", q.addrs)
	}
	testhost.Check(t, b.SetCIDRs(ctx, want))
	testhost.Check(t, b.Detach(ctx, "q"))
	testhost.Check(t, b.Close())
	again := open(t, Config{Name: "brcidr", StateDir: dir})
	if q := attach(t, again, "q"); !want[0].Contains(q.addrs[0]) {
		t.Errorf("after a restart: %v", q.addrs)
	}
}

// The kernel may have no sockets of SCTP and track and translate it all the same, so the packet is made by hand:
// it need only arrive.
func TestSCTPHostPort(t *testing.T) {
	out := testhost.Outside(t)
	b := open(t, Config{Name: "brsctp", StateDir: t.TempDir()})
	p := attach(t, b, "p", model.PortMapping{Protocol: model.SCTP, HostPort: 9000, ContainerPort: 90})
	var in, from net.PacketConn
	testhost.In(t, p.NetNS, func() (err error) { in, err = net.ListenPacket("ip4:132", p.v4()); return err })
	defer in.Close()
	testhost.In(t, out, func() (err error) { from, err = net.ListenPacket("ip4:132", "198.51.100.2"); return err })
	defer from.Close()

	packet := make([]byte, 32)
	binary.BigEndian.PutUint16(packet[0:], 5000)  // from port
	binary.BigEndian.PutUint16(packet[2:], 9000)  // to port
	packet[12] = 1                                // INIT (RFC 9260, 3.3.2)
	binary.BigEndian.PutUint16(packet[14:], 20)   // length of the chunk
	binary.BigEndian.PutUint32(packet[16:], 7)    // tag
	binary.BigEndian.PutUint32(packet[20:], 4096) // window
	binary.BigEndian.PutUint16(packet[24:], 1)    // streams out
	binary.BigEndian.PutUint16(packet[26:], 1)    // and in
	binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
	_, err := from.WriteTo(packet, &net.IPAddr{IP: net.IPv4(198, 51, 100, 1)})
	testhost.Check(t, err)

	got := make([]byte, 64)
	in.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, sender, err := in.ReadFrom(got)
	testhost.Check(t, err)
	if n != len(packet) || binary.BigEndian.Uint16(got[2:]) != 90 || sender.String() != "198.51.100.2" {
		t.Errorf("%d bytes from %s to port %d", n, sender, binary.BigEndian.Uint16(got[2:]))
	}
}

func TestAPodWithoutIPv6GetsIPv4(t *testing.T) {
	b := open(t, Config{Name: "brno6", StateDir: t.TempDir()})
	path := testhost.Namespace(t)
	testhost.In(t, path, func() error { return setSysctl("net/ipv6/conf/default/disable_ipv6", "1") })
	addrs, err := b.Attach(ctx, Endpoint{ID: "p", Pod: "default/p", NetNS: path,
		Ports: []model.PortMapping{tcp(8080, 80)}})
	if err != nil || len(addrs) != 1 || !addrs[0].Is4() {
		t.Errorf("%v, %v", addrs, err)
	}
}

func TestANodeWithoutIPv6GivesIPv4(t *testing.T) {
	testhost.Check(t, setSysctl("net/ipv6/conf/default/disable_ipv6", "1"))
	defer setSysctl("net/ipv6/conf/default/disable_ipv6", "0")
	b := open(t, Config{Name: "brnode6", StateDir: t.TempDir()})
	p := attach(t, b, "p", tcp(8080, 80))
	testhost.Serve(t, p.NetNS, "tcp", ":80", "p")
	if name, _, err := testhost.Ask(t, "", "tcp", "127.0.0.1:8080"); len(p.addrs) != 1 || name != "p" {
		t.Errorf("%v, %q, %v", p.addrs, name, err)
	}
}

// TestANodeWithoutIPv6MayBeToldOfBothRanges, again and again, as a node's range is. Seen to fail with all ranges
// compared in SetCIDRs.
func TestANodeWithoutIPv6MayBeToldOfBothRanges(t *testing.T) {
	testhost.Check(t, setSysctl("net/ipv6/conf/all/disable_ipv6", "1")) // of the namespace that the tests run in
	defer setSysctl("net/ipv6/conf/all/disable_ipv6", "0")
	dual := []netip.Prefix{netip.MustParsePrefix("10.98.8.0/24"), netip.MustParsePrefix("fd00:98:8::/64")}
	b := open(t, Config{Name: "brtold6", StateDir: t.TempDir()})
	testhost.Check(t, b.SetCIDRs(ctx, dual))
	p := attach(t, b, "p")
	testhost.Check(t, b.SetCIDRs(ctx, dual))
	next := crash(t, b)
	defer next.Close()
	testhost.Check(t, next.SetCIDRs(ctx, dual))
	testhost.Check(t, reconcile(next, map[string]Endpoint{"p": p.Endpoint}))
	other := []netip.Prefix{netip.MustParsePrefix("10.98.9.0/24"), dual[1]}
	if err := next.SetCIDRs(ctx, other); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another range under a pod: %v", err)
	}
	testhost.Check(t, reconcile(next, nil))
	b.pods.mu.Lock()
	b.pods.records = map[string]*record{}
	b.pods.mu.Unlock()
}

// TestANodeThatLosesIPv6KeepsIPv4, while it runs and over a restart, and gets IPv6 back. Seen to fail with all pools in
// place of the usable ones, without the look at IPv6 in intact, and where an address that nobody has stays taken.
func TestANodeThatLosesIPv6KeepsIPv4(t *testing.T) {
	set := func(value string) { testhost.Check(t, setSysctl("net/ipv6/conf/all/disable_ipv6", value)) }
	defer set("0") // of the namespace that the tests run in
	dual := []netip.Prefix{netip.MustParsePrefix("10.98.7.0/24"), netip.MustParsePrefix("fd00:98:7::/64")}
	b := open(t, Config{Name: "brlose6", StateDir: t.TempDir()})
	testhost.Check(t, b.SetCIDRs(ctx, dual))
	pods := map[string]pod{}
	live := map[string]Endpoint{}
	add := func(b *Bridge, id string, families int) {
		t.Helper()
		p := attach(t, b, id)
		if len(p.addrs) != families || !p.addrs[0].Is4() {
			t.Errorf("the addresses of %s are %v, want %d", id, p.addrs, families)
		}
		testhost.Serve(t, p.NetNS, "tcp", ":80", id)
		pods[id], live[id] = p, p.Endpoint
	}
	works := func(b *Bridge, when string) {
		t.Helper()
		for id, p := range pods {
			if name, _, err := testhost.Ask(t, "", "tcp", p.v4()+":80"); err != nil || name != id {
				t.Errorf("%s: %s is %q, %v", when, p.v4(), name, err)
			}
		}
		if err := errors.Join(b.Health(), b.SetCIDRs(ctx, dual)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	add(b, "both", 2)
	set("1")
	b.check(ctx)
	add(b, "only4", 1)
	works(b, "without IPv6")

	testhost.Check(t, removeLink("brlose6"))
	next := crash(t, b)
	defer next.Close()
	testhost.Check(t, reconcile(next, live))
	add(next, "late", 1)
	addrs, err := next.Attach(ctx, live["both"])
	if err != nil || len(addrs) != 1 || addrs[0] != pods["both"].addrs[0] {
		t.Errorf("attached again: %v, %v; want the address of IPv4 of %v", addrs, err, pods["both"].addrs)
	}
	next.pods.mu.Lock()
	if owner := next.pods.pools[1].store.owners[pods["both"].addrs[1]]; owner != "" {
		t.Errorf("the address of IPv6 that %s had is taken still", owner)
	}
	next.pods.mu.Unlock()
	works(next, "without IPv6 and with another daemon")

	set("0")
	next.check(ctx)
	add(next, "again6", 2)
	works(next, "with IPv6 again")
	if name, _, err := testhost.Ask(t, "", "tcp", net.JoinHostPort(pods["again6"].v6(), "80")); err != nil {
		t.Errorf("with IPv6 again: %q, %v", name, err)
	}
	testhost.Check(t, reconcile(next, nil))
	b.pods.mu.Lock()
	b.pods.records = map[string]*record{}
	b.pods.mu.Unlock()
}
