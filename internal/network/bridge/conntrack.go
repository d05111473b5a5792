package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// staleFlows matches connection tracking entries of host ports without connections. An entry outlives the rule that it
// was made by as long as packets of the client refresh it, so the table alone does not turn such a client round.
type staleFlows []hostPort

func (s staleFlows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
	dst = dst.Unmap()
	return slices.ContainsFunc(s, func(p hostPort) bool {
		return f.Forward.Protocol == p.proto && f.Forward.DstPort == p.port && dst.Is4() == p.host.Is4() &&
			(p.host.IsUnspecified() || p.host == dst)
	})
}

// deleteFlows is replaced by a test: no kernel that has what the bridge needs refuses it there.
var deleteFlows = netlink.ConntrackDeleteFilters

// forgetFlows removes the tracking entries of the UDP host ports of an endpoint. SCTP and TCP find out by themselves.
// It is for clients of an earlier endpoint that go on sending. The endpoint itself does not need it, so it does not
// fail where the kernel does not do it: one without nf_conntrack_netlink, for example.
func (b *Bridge) forgetFlows(r *record) {
	if err := forgetFlows(r.hostPorts); err != nil {
		b.log.Warn("clients of the pod's UDP host ports may have to wait", "pod", r.Pod, "error", err)
	}
}

func forgetFlows(ports []hostPort) error {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		var stale staleFlows
		for _, p := range ports {
			if p.proto == unix.IPPROTO_UDP && p.host.Is4() == (family == unix.AF_INET) {
				stale = append(stale, p)
			}
		}
		if len(stale) == 0 {
			continue
		}
		_, err := deleteFlows(netlink.ConntrackTable, family, stale)
		if err != nil && !errors.Is(err, unix.EPROTONOSUPPORT) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forget the connections of host ports: %w", err)
		}
	}
	return nil
}
