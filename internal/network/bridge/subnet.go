package bridge

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ofOthers are the second bytes of ranges in 10.0.0.0/8 that are never chosen: other programs take them without a look,
// perhaps after the bridge has. They have no interface there as long as none of their containers runs.
var ofOthers = []int{
	85,  // CRI-O's example of a CNI configuration
	88,  // podman's default network
	244, // Flannel's, on all nodes of a cluster
}

// firstChoice is the second byte of the first range that is tried. It is above those of nerdctl (4) and of k3s (42 and
// 43), and below those of podman's further networks (from 89) and of kubeadm's services (from 96).
const firstChoice = 60

// chooseCIDRs finds ranges that nothing on the node has an address in or a route to. Routes of tables other than the
// main one count as well, such as those of VPNs, unless nothing is free then: rules may never lead to such a table.
func chooseCIDRs(h *netlink.Handle, bridge, seed string, v6 bool) ([]netip.Prefix, error) {
	used, elsewhere, err := usedPrefixes(h, bridge)
	if err != nil {
		return nil, err
	}
	chosen, err := chooseFree(slices.Concat(used, elsewhere), bridge, seed, v6)
	if err != nil {
		return chooseFree(used, bridge, seed, v6)
	}
	return chosen, nil
}

// chooseFree finds ranges that overlap with none that is in use.
func chooseFree(used []netip.Prefix, bridge, seed string, v6 bool) ([]netip.Prefix, error) {
	free := func(p netip.Prefix) bool {
		for _, u := range used {
			if u.Overlaps(p) {
				return false
			}
		}
		return true
	}
	var chosen []netip.Prefix
	for second := firstChoice; second < 256; second++ {
		if slices.Contains(ofOthers, second) {
			continue
		}
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second), 0, 0}), 16)
		if free(p) {
			chosen = append(chosen, p)
			break
		}
	}
	for second := 16; len(chosen) == 0 && second < 32; second++ {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(second), 0, 0}), 16)
		if free(p) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no private IPv4 range is free for the pods; name one with the pod CIDR setting: %w",
			errdefs.ErrFailedPrecondition)
	}
	if !v6 {
		return chosen, nil
	}
	machine, _ := os.ReadFile("/etc/machine-id")
	for salt := range 16 {
		// A unique local prefix (RFC 4193) with a global ID that is this machine's and this bridge's.
		sum := sha256.Sum256(fmt.Appendf(machine, "\x00%s\x00%s\x00%d", bridge, seed, salt))
		raw := [16]byte{0: 0xfd}
		copy(raw[1:8], sum[:7])
		p := netip.PrefixFrom(netip.AddrFrom16(raw), 64)
		if free(p) {
			return append(chosen, p), nil
		}
	}
	return chosen, nil
}

// ofIPv4 are the ranges of IPv4.
func ofIPv4(cidrs []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(cidrs), func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// usedPrefixes are those of all addresses of the node and of all routes but the bridge's own and default routes. Those
// of routes in other tables than the main one are in elsewhere.
func usedPrefixes(h *netlink.Handle, bridge string) (used, elsewhere []netip.Prefix, err error) {
	own := 0
	if link, err := h.LinkByName(bridge); err == nil {
		own = link.Attrs().Index
	}
	addrs, err := whole(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("the node's addresses: %w", err)
	}
	for _, a := range addrs {
		if a.LinkIndex != own {
			used = append(used, prefixOf(a.IPNet).Masked())
		}
	}
	ways, err := whole(func() ([]netlink.Route, error) {
		// Table 0 stands for all of them. Without it, the library leaves out all but the main one.
		return h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("the node's routes: %w", err)
	}
	for _, r := range ways {
		// Table local has the node's addresses, with those of broadcast.
		if r.Dst == nil || r.Table == unix.RT_TABLE_LOCAL || r.LinkIndex == own && own != 0 {
			continue
		}
		p := prefixOf(r.Dst)
		switch {
		case p.Bits() == 0:
		case r.Table == unix.RT_TABLE_MAIN:
			used = append(used, p.Masked())
		default:
			elsewhere = append(elsewhere, p.Masked())
		}
	}
	return used, elsewhere, nil
}

func cidrText(cidrs []netip.Prefix) string {
	text := ""
	for i, c := range cidrs {
		if i > 0 {
			text += ","
		}
		text += c.String()
	}
	return text
}
