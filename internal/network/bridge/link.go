package bridge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"berth/internal/namespace"
)

// Interface is the name of the interface in the pod.
const Interface = "eth0"

const (
	defaultMTU = 1500
	// linkWait bounds the wait for what the kernel does in the background, which a busy node delays.
	linkWait = 10 * time.Second
	loopback = 1 // the index of lo in every network namespace
)

var nameEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func nameHash(s string, length int) string {
	sum := sha256.Sum256([]byte(s))
	return nameEncoding.EncodeToString(sum[:])[:length]
}

// vethPrefix begins the names of all veths of a bridge, and of no other's.
func vethPrefix(bridge string) string { return "b" + nameHash(bridge, 4) }

// vethName names a pod's veth in 15 characters; 50 bits of them are the pod's.
func vethName(bridge, id string) string { return vethPrefix(bridge) + nameHash(id, 10) }

// bridgeMAC marks a bridge as Berth's: it is set in the request that makes the bridge. It also keeps the bridge from
// taking its ports' addresses, and udev from giving it another.
func bridgeMAC(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("berth bridge " + name))
	return append(net.HardwareAddr{0x02, 0xbe}, sum[:4]...)
}

// podMAC comes from the pod's address, so that a neighbour's cache is right for the next pod with that address.
func podMAC(addr netip.Addr) net.HardwareAddr {
	raw := addr.AsSlice()
	return append(net.HardwareAddr{0x0a, 0x58}, raw[len(raw)-4:]...)
}

func vethMAC(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	return append(net.HardwareAddr{0x02, 0xb2}, sum[:4]...)
}

// routes opens a netlink socket for links, addresses and routes, in the calling thread's namespace.
// One for each operation: a handle serves one request at a time, and a request that waits in the kernel must not hold
// up another pod's.
func routes() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return h, nil
}

// whole repeats a list if the kernel says that it changed while it was read, because the list may lack entries.
func whole[T any](list func() ([]T, error)) ([]T, error) {
	for try := 0; ; try++ {
		got, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == 100 {
			return got, err
		}
	}
}

func isNoLink(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

// makeBridge makes the bridge, or corrects the one that is there, and returns its index.
func makeBridge(ctx context.Context, h *netlink.Handle, name string, mtu int, gateways []netip.Prefix) (int, error) {
	mac := bridgeMAC(name)
	link, err := h.LinkByName(name)
	if isNoLink(err) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = name, mtu, mac
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return 0, fmt.Errorf("make bridge %s: %w", name, err)
		}
		link, err = h.LinkByName(name)
	}
	if err != nil {
		return 0, fmt.Errorf("bridge %s: %w", name, err)
	}
	attrs := link.Attrs()
	if link.Type() != "bridge" || !bytes.Equal(attrs.HardwareAddr, mac) {
		return 0, fmt.Errorf("interface %s is there and was not made by Berth; choose another name for the bridge: %w",
			name, errdefs.ErrFailedPrecondition)
	}
	if attrs.MTU != mtu {
		if err := h.LinkSetMTU(link, mtu); err != nil {
			return 0, fmt.Errorf("set MTU of bridge %s to %d: %w", name, mtu, err)
		}
	}
	if err := setGateways(h, link, gateways); err != nil {
		return 0, err
	}
	// A pod that says it is an IPv6 router must not become the node's, with IPv6 on the bridge or without: the node has a
	// link-local address there all the same.
	path := "net/ipv6/conf/" + name + "/accept_ra"
	if err := setSysctl(path, "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	if attrs.Flags&net.FlagUp == 0 {
		// Until its link-local address has passed the detection of duplicates, which takes a second, the node could not
		// ask for the pods' link-layer addresses.
		path := "net/ipv6/conf/" + name + "/accept_dad"
		if err := setSysctl(path, "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		if err := h.LinkSetUp(link); err != nil {
			return 0, fmt.Errorf("bring up bridge %s: %w", name, err)
		}
	}
	for _, g := range gateways {
		if err := awaitSolicited(ctx, name, g.Addr()); err != nil {
			return 0, err
		}
	}
	return attrs.Index, nil
}

func globalAddrs(h *netlink.Handle, link netlink.Link) ([]netlink.Addr, error) {
	addrs, err := whole(func() ([]netlink.Addr, error) { return h.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", link.Attrs().Name, err)
	}
	return slices.DeleteFunc(addrs, func(a netlink.Addr) bool { return a.Scope != unix.RT_SCOPE_UNIVERSE }), nil
}

func prefixOf(n *net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}

func setGateways(h *netlink.Handle, link netlink.Link, gateways []netip.Prefix) error {
	addrs, err := globalAddrs(h, link)
	if err != nil {
		return err
	}
	have := map[netip.Prefix]bool{}
	for _, a := range addrs {
		p := prefixOf(a.IPNet)
		if have[p] = slices.Contains(gateways, p); !have[p] {
			if err := h.AddrDel(link, &a); err != nil {
				return fmt.Errorf("remove address %s from bridge %s: %w", p, link.Attrs().Name, err)
			}
		}
	}
	for _, gw := range gateways {
		if have[gw] {
			continue
		}
		if err := h.AddrAdd(link, address(gw)); err != nil {
			return fmt.Errorf("add address %s to bridge %s: %w", gw, link.Attrs().Name, err)
		}
	}
	return nil
}

// address leaves out the duplicate address detection of IPv6: the allocator has done that, and it takes a second.
func address(p netip.Prefix) *netlink.Addr {
	n := ipNet(p)
	a := &netlink.Addr{IPNet: &n}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// removeBridge removes the bridge if it is Berth's.
func removeBridge(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		if isNoLink(err) {
			return nil
		}
		return fmt.Errorf("bridge %s: %w", name, err)
	}
	if link.Type() != "bridge" || !bytes.Equal(link.Attrs().HardwareAddr, bridgeMAC(name)) {
		return nil
	}
	if err := h.LinkDel(link); err != nil && !isNoLink(err) {
		return fmt.Errorf("remove bridge %s: %w", name, err)
	}
	return nil
}

// uplinkMTU is the MTU of the way out: of the interface of the default route. ok is false where there is none.
func uplinkMTU(h *netlink.Handle) (mtu int, ok bool) {
	for _, documentation := range []string{"192.0.2.1", "2001:db8::1"} { // addresses that only a default route leads to
		way, err := h.RouteGet(net.ParseIP(documentation))
		if err != nil || len(way) == 0 || way[0].Type != unix.RTN_UNICAST {
			continue
		}
		link, err := h.LinkByIndex(way[0].LinkIndex)
		if err == nil && link.Attrs().Flags&net.FlagLoopback == 0 {
			return link.Attrs().MTU, true
		}
	}
	return 0, false
}

// veth is a pod's pair: one end on the bridge, the other in the pod.
type veth struct {
	name   string
	alias  string
	mac    net.HardwareAddr // of the pod's end
	mtu    int
	master int
	ipv6   bool // the node has IPv6
}

// create makes the pair in one request, the pod's end in its namespace at once. Neither is up.
func (v veth) create(ns *os.File) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.mtu))))
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, vethMAC(v.name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(v.master))))
	// One queue for each direction, which is what the kernel would leave of as many as there are processors. To drop the
	// others it waits for a grace period, with the lock of all interfaces.
	one := nl.Uint32Attr(1)
	req.AddData(nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, one))
	req.AddData(nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, one))

	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(Interface))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.mtu)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, v.mac)
	peer.AddRtAttr(unix.IFLA_NUM_TX_QUEUES, one)
	peer.AddRtAttr(unix.IFLA_NUM_RX_QUEUES, one)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns.Fd())))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// enslave puts the end that is here on the bridge, in hairpin mode and up, with the pod's ID as its alias. It needs no
// address of its own, so the kernel is kept from giving it a link-local one.
func (v veth) enslave() error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, nl.NonZeroTerminated(v.alias)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(v.master))))
	if v.ipv6 {
		spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(nl.IN6_ADDR_GEN_MODE_NONE))
		req.AddData(spec)
	}
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return err
	}

	req = nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.name)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil).AddRtAttr(nl.IFLA_BRPORT_MODE, nl.Uint8Attr(1))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// linkNames looks for interfaces by their names. It needs neither the lock of all interfaces nor a list of them.
type linkNames struct{ socket int }

func openLinkNames() (linkNames, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return linkNames{fd}, os.NewSyscallError("socket", err)
}

func (l linkNames) close() { unix.Close(l.socket) }

// has says whether there is an interface of this name, in the network namespace in which the socket was made.
func (l linkNames) has(name string) (bool, error) {
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(l.socket, unix.SIOCGIFINDEX, request)
	}
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	return err == nil, err
}

func hasLink(name string) (bool, error) {
	names, err := openLinkNames()
	if err != nil {
		return false, err
	}
	defer names.close()
	return names.has(name)
}

// removeLink removes an interface by its name, which may be gone.
func removeLink(name string) error {
	if there, err := hasLink(name); err == nil && !there {
		return nil
	}
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

// ourVeths returns the names of the bridge's veths and the indexes of what they are ports of (0: of nothing).
//
// A list of all interfaces by netlink (LinkList) would say all of it at once. But the kernel looks for the ID of the
// namespace of each veth's other end among the IDs of all namespaces, so that this list grows with the square of the
// pods: some 26 ms of processor time with 1,000 of them.
func ourVeths(h *netlink.Handle, bridge string) (map[string]int, error) {
	ours := func(name string) bool { return len(name) == 15 && strings.HasPrefix(name, vethPrefix(bridge)) }
	names, err := interfaceNames()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	ports, err := whole(bridgePorts)
	if err != nil {
		return nil, fmt.Errorf("list ports of bridges: %w", err)
	}
	found := map[string]int{}
	for _, p := range ports {
		if ours(p.Name) {
			found[p.Name] = p.MasterIndex
		}
	}
	for _, name := range names {
		if _, known := found[name]; known || !ours(name) {
			continue
		}
		link, err := h.LinkByName(name) // a port of nothing, or of what is no bridge
		if isNoLink(err) || err == nil && link.Type() != "veth" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		found[name] = link.Attrs().MasterIndex
	}
	return found, nil
}

// interfaceNames are those of all interfaces (proc_pid_net(5)).
func interfaceNames() ([]string, error) {
	data, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		if name, _, ok := strings.Cut(line, ":"); ok { // the two lines of the heading have none
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names, nil
}

// bridgePorts are the ports of all bridges, with their names and the indexes of their bridges.
func bridgePorts() (ports []netlink.LinkAttrs, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		link, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, err
		}
		ports = append(ports, *link.Attrs())
	}
	return ports, nil
}

// configure gives the pod's end its addresses and default routes, and brings up lo. It returns the addresses that the
// pod has: a pod that has IPv6 disabled by its sysctls goes without that one.
func configure(ctx context.Context, ns *os.File, addrs []netip.Prefix, gateways []netip.Addr) ([]netip.Addr, error) {
	var h *netlink.Handle
	err := inside(ns, func() (err error) {
		if h, err = routes(); err != nil {
			return err
		}
		// Another pod on the bridge must not become this one's router by advertising itself.
		path := "net/ipv6/conf/" + Interface + "/accept_ra"
		if err := namespace.WriteSysctl(path, "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("set sysctl %s to 0: %w", path, err)
		}
		return nil
	})
	if h != nil {
		defer h.Close()
	}
	if err != nil {
		return nil, err
	}
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loopback, Name: "lo"}}
	if err := h.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("bring up lo: %w", err)
	}
	link, err := h.LinkByName(Interface)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Interface, err)
	}
	if !slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		if err := withoutLinkLocal(h, link); err != nil {
			return nil, err
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("bring up %s: %w", Interface, err)
	}
	var got []netip.Addr
	for i, p := range addrs {
		err := h.AddrAdd(link, address(p))
		if p.Addr().Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("add address %s: %w", p, err)
		}
		way := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateways[i].AsSlice()}
		if err := h.RouteAdd(way); err != nil {
			return nil, fmt.Errorf("add default route by %s: %w", gateways[i], err)
		}
		got = append(got, p.Addr())
	}
	if err := awaitCarrier(ctx, h, Interface); err != nil {
		return nil, err
	}
	for _, a := range got {
		if err := inside(ns, func() error { return awaitSolicited(ctx, Interface, a) }); err != nil {
			return nil, err
		}
	}
	if len(got) == 0 {
		return nil, fmt.Errorf("the pod has IPv6 disabled and its network has no IPv4: %w", errdefs.ErrFailedPrecondition)
	}
	return got, nil
}

// withoutLinkLocal keeps the kernel from giving an interface a link-local address of IPv6. The pod has no use for one
// where its network is of IPv4, and each tells all ports of the bridge several times that it is there. A kernel or a
// pod without IPv6 has none anyway.
func withoutLinkLocal(h *netlink.Handle, link netlink.Link) error {
	err := h.LinkSetIP6AddrGenMode(link, nl.IN6_ADDR_GEN_MODE_NONE)
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("keep %s without a link-local address: %w", link.Attrs().Name, err)
	}
	return nil
}

// awaitCarrier waits until an end of a pair can send and its port on the bridge can forward. The kernel gets
// to that some time after both ends are up, and at once where it is asked for the interface (since Linux 6.9).
// A pod that started before would lose its first packets, and wait for a second to send them again.
func awaitCarrier(ctx context.Context, h *netlink.Handle, name string) error {
	for end := time.Now().Add(linkWait); ; {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("interface %s has no carrier: %w", name, errdefs.ErrUnavailable)
		}
	}
}

// awaitSolicited waits until an interface in this thread's namespace hears those who ask for the link-layer address
// of an IPv6 address of its own. The kernel joins that group some time after the address was added; who asked
// before would get no answer, and wait for a second to ask again.
func awaitSolicited(ctx context.Context, name string, addr netip.Addr) error {
	if !addr.Is6() {
		return nil
	}
	raw := addr.As16()
	// RFC 4291, 2.7.1, as the kernel writes it.
	group := fmt.Sprintf("ff0200000000000000000001ff%x", raw[13:])
	for end := time.Now().Add(linkWait); ; {
		joined, err := os.ReadFile("/proc/thread-self/net/igmp6")
		if err != nil {
			return fmt.Errorf("multicast groups of %s: %w", name, err)
		}
		for line := range strings.Lines(string(joined)) {
			if f := strings.Fields(line); len(f) > 2 && f[1] == name && f[2] == group {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("interface %s does not listen for those who ask for %s: %w", name, addr, errdefs.ErrUnavailable)
		}
	}
}

// forward lets the node forward packets between its interfaces.
func forward(h *netlink.Handle, bridge string, index int, v4, v6 bool) error {
	if v4 {
		if err := setSysctl("net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
		// Packets that a process here sent to 127.0.0.1 and a host port go out to a pod and come back as such. What a pod
		// itself sends to 127.0.0.0/8, or with such a source, is dropped by the table.
		if err := setSysctl("net/ipv4/conf/"+bridge+"/route_localnet", "1"); err != nil {
			return err
		}
	}
	if !v6 {
		return nil
	}
	// The same for [::1], where that can work (see the package's comment). The kernel looks for the way to ::1
	// only on the interface that a packet came in by, and the answers come in by the bridge. What comes from outside
	// with such an address is dropped long before that.
	local := &netlink.Route{
		LinkIndex: index, Dst: &net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Priority: 1024,
	}
	if err := h.RouteReplace(local); err != nil {
		return fmt.Errorf("add local route for ::1 on bridge %s: %w", bridge, err)
	}
	if on, err := sysctl("net/ipv6/conf/all/forwarding"); err != nil || on == "1" {
		return err
	}
	if err := keepAdvertisedRoutes(h); err != nil {
		return err
	}
	return setSysctl("net/ipv6/conf/all/forwarding", "1")
}

// forwards tells whether the sysctls that forward has set still say so. Whoever loads the node's sysctls anew may have
// set others.
func forwards(bridge string, v4, v6 bool) (bool, error) {
	var paths []string
	if v4 {
		paths = append(paths, "net/ipv4/ip_forward", "net/ipv4/conf/"+bridge+"/route_localnet")
	}
	if v6 {
		paths = append(paths, "net/ipv6/conf/all/forwarding")
	}
	for _, path := range paths {
		if on, err := sysctl(path); err != nil || on != "1" {
			return false, err
		}
	}
	return true, nil
}

// keepAdvertisedRoutes makes interfaces with a default route from a router advertisement accept further advertisements.
// A node that forwards ignores them by default, and would lose its default route when that expires.
func keepAdvertisedRoutes(h *netlink.Handle) error {
	all, err := whole(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return fmt.Errorf("IPv6 routes: %w", err)
	}
	for _, r := range all {
		link, err := h.LinkByIndex(r.LinkIndex)
		if err != nil {
			continue
		}
		path := "net/ipv6/conf/" + link.Attrs().Name + "/accept_ra"
		if v, err := sysctl(path); err == nil && v == "1" {
			if err := setSysctl(path, "2"); err != nil {
				return err
			}
		}
	}
	return nil
}
