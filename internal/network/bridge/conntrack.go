package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// staleFlows matches connection tracking entries of host ports without connections. An entry outlives the rule that it
// was made by as long as packets of the client refresh it, so the table alone does not turn such a client round. It
// matches no entry of packets that only pass through the node, to the same port of another host.
type staleFlows struct {
	ports map[flowPort][]hostPort
	// isLocal tells whether an address is the node's. Nil: the endpoint goes, and only entries that lead to it match.
	isLocal func(netip.Addr) bool
}

type flowPort struct {
	proto uint8
	port  uint16
}

func (s staleFlows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	for _, p := range s.ports[flowPort{f.Forward.Protocol, f.Forward.DstPort}] {
		dst := addrOf(f.Forward.DstIP)
		if dst.Is4() != p.host.Is4() || !p.host.IsUnspecified() && p.host != dst {
			continue
		}
		if s.isLocal == nil {
			if netip.AddrPortFrom(addrOf(f.Reverse.SrcIP), f.Reverse.SrcPort) == p.target {
				return true
			}
		} else if s.isLocal(dst) {
			return true
		}
	}
	return false
}

func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

// deleteFlows is replaced by a test: no kernel that has what the bridge needs refuses it there.
var deleteFlows = netlink.ConntrackDeleteFilters

// forgetFlows removes the tracking entries of the UDP host ports of an endpoint. SCTP and TCP find out by themselves.
// It is for clients of an earlier endpoint that go on sending. The endpoint itself does not need it, so it does not
// fail where the kernel does not do it: one without nf_conntrack_netlink, for example. leaving says that the endpoint
// goes: only entries that lead to it are removed then.
func (b *Bridge) forgetFlows(r *record, leaving bool) {
	if err := forgetFlows(r.hostPorts, leaving); err != nil {
		b.log.Warn("clients of the pod's UDP host ports may have to wait", "pod", r.Pod, "error", err)
	}
}

func forgetFlows(ports []hostPort, leaving bool) error {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		stale := staleFlows{ports: map[flowPort][]hostPort{}}
		for _, p := range ports {
			if p.proto == unix.IPPROTO_UDP && p.host.Is4() == (family == unix.AF_INET) {
				at := flowPort{p.proto, p.port}
				stale.ports[at] = append(stale.ports[at], p)
			}
		}
		if len(stale.ports) == 0 {
			continue
		}
		local := localAddresses{}
		if !leaving {
			stale.isLocal = local.has
		}
		_, err := deleteFlows(netlink.ConntrackTable, family, stale)
		local.close()
		if err != nil && !errors.Is(err, unix.EPROTONOSUPPORT) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forget the connections of host ports: %w", err)
		}
	}
	return nil
}

// localAddresses asks the kernel which addresses are the node's, as the rules for host ports do (see isLocal). It asks
// only for those that entries of a host port's number have: as a rule there are none. The lookup takes no lock of the
// kernel's, where a list of all addresses takes that of all interfaces on older kernels.
type localAddresses struct {
	handle *netlink.Handle
	known  map[netip.Addr]bool
}

func (l *localAddresses) has(addr netip.Addr) bool {
	if local, ok := l.known[addr]; ok {
		return local
	}
	if l.handle == nil {
		handle, err := routes()
		if err != nil {
			return true // its clients must find the pod, whatever else that costs
		}
		l.handle, l.known = handle, map[netip.Addr]bool{}
	}
	ways, err := l.handle.RouteGet(addr.AsSlice())
	l.known[addr] = err == nil && len(ways) > 0 && ways[0].Type == unix.RTN_LOCAL
	return l.known[addr]
}

func (l *localAddresses) close() {
	if l.handle != nil {
		l.handle.Close()
	}
}
