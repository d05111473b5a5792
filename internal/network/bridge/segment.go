package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// segment is the node's part of the pods' network, which all endpoints have in common: the bridge's interface, the
// sysctls that forwarding needs, and the table. Its lock is held while these are made, removed and checked, and is
// taken before those of portTable and endpoints.
type segment struct {
	sync.Mutex      // guards up to ipv6
	up         bool // interface and table are in place, as far as is known
	// remains: some of it may be there, of a build or a removal that failed.
	remains bool
	index   int // of the bridge
	mtu     int
	nextMTU int  // that the last check found, if it is another than mtu
	ipv6    bool // interfaces can have IPv6 addresses

	cfg    Config
	log    *slog.Logger
	pods   *endpoints
	ports  *portTable
	noIPv6 sync.Once // says that pods get no IPv6 address

	reason  sync.Mutex // guards problem: whoever asks for it does not wait until all is in place
	problem error      // why not all is in place
}

func (s *segment) setProblem(err error) {
	s.reason.Lock()
	defer s.reason.Unlock()
	s.problem = err
}

// why is why endpoints cannot be attached, as far as is known; nil: they can.
func (s *segment) why() error {
	s.reason.Lock()
	defer s.reason.Unlock()
	return s.problem
}

// build puts bridge, sysctls and table in place. The lock is held.
func (s *segment) build(ctx context.Context) error {
	if s.up {
		return nil
	}
	err := s.buildAll(ctx)
	s.up, s.remains = err == nil, err != nil
	if err == nil || ctx.Err() == nil { // that a client has gone says nothing about the node
		s.setProblem(err)
	}
	return err
}

func (s *segment) buildAll(ctx context.Context) error {
	h, err := routes()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := s.chooseRange(ctx, h); err != nil {
		return err
	}
	if s.ipv6, err = ipv6Enabled(); err != nil {
		return err
	}
	v6Addresses, err := canHaveIPv6(s.cfg.Name)
	if err != nil {
		return err
	}
	s.pods.mu.Lock()
	s.pods.noIPv6 = !v6Addresses
	pools, unused := s.pods.usable(), len(s.pods.pools) > len(s.pods.usable())
	s.pods.mu.Unlock()
	if unused {
		s.sayNoIPv6()
	}
	s.mtu = s.cfg.MTU
	if s.mtu == 0 {
		var ok bool
		if s.mtu, ok = uplinkMTU(h); !ok {
			s.mtu = defaultMTU
		}
	}
	var gateways []netip.Prefix
	var v4, v6 bool
	for _, p := range pools {
		gateways = append(gateways, netip.PrefixFrom(p.gateway, p.prefix.Bits()))
		v4, v6 = v4 || p.gateway.Is4(), v6 || p.gateway.Is6()
	}
	if err := s.checkRoutes(h, gateways, false); err != nil {
		return err
	}
	if s.index, err = makeBridge(ctx, h, s.cfg.Name, s.mtu, gateways); err != nil {
		return err
	}
	if err := forward(h, s.cfg.Name, s.index, v4, v6); err != nil {
		return err
	}
	if err := s.ports.replace(); err != nil {
		return err
	}
	return s.checkRoutes(h, gateways, true)
}

// checkRoutes looks whether the node sends packets to pods elsewhere: another runtime's bridge may still have the
// range, or a VPN a table of routes that comes before the main one. Pods would run, and nobody would reach them.
// up says that the bridge has its addresses, and that the kernel's answer is the one that packets get.
func (s *segment) checkRoutes(h *netlink.Handle, gateways []netip.Prefix, up bool) error {
	for _, g := range gateways {
		first := g.Addr().Next()
		ways, err := h.RouteGetWithOptions(first.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		if err != nil || len(ways) == 0 || ways[0].Type != unix.RTN_UNICAST {
			continue // none
		}
		to := netip.PrefixFrom(g.Masked().Addr(), 0).Masked()
		if ways[0].Dst != nil {
			to = prefixOf(ways[0].Dst)
		}
		table := ways[0].Table
		if table == unix.RT_TABLE_MAIN && to.Bits() < g.Bits() || to.IsSingleIP() {
			continue // the bridge's own, which is more specific, comes before it; or it is one address's
		}
		link, err := h.LinkByIndex(ways[0].LinkIndex)
		if err != nil || link.Attrs().Name == s.cfg.Name {
			continue
		}
		other := link.Attrs().Name
		if table == unix.RT_TABLE_MAIN {
			return fmt.Errorf("the node routes %s to interface %s, and pods get their addresses of %s: packets to them would "+
				"go there; where nothing needs that interface any more, remove it (ip link delete %s), or give pods another "+
				"range: %w",
				to, other, g.Masked(), other, errdefs.ErrFailedPrecondition)
		}
		if !up && !beforeMain(h, g.Addr(), table) {
			continue
		}
		return fmt.Errorf("the node routes %s to interface %s, by its table %d that comes before the main one (ip rule), "+
			"and pods get their addresses of %s: packets to them go there; let the main table come first for them "+
			"(ip rule add to %s lookup main priority NUMBER, with a number below that of the table's rule), or give pods "+
			"another range: %w",
			to, other, table, g.Masked(), g.Masked(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// beforeMain tells whether the kernel looks for routes in a table before it looks in the main one, where it would find
// the bridge's. Where the rules cannot be read it says no: with the bridge in place, the kernel itself says.
func beforeMain(h *netlink.Handle, of netip.Addr, table int) bool {
	family := netlink.FAMILY_V6
	if of.Is4() {
		family = netlink.FAMILY_V4
	}
	rules, err := whole(func() ([]netlink.Rule, error) { return h.RuleList(family) })
	if err != nil {
		return false
	}
	first := func(table int) int {
		at := math.MaxInt
		for _, r := range rules {
			if r.Table == table {
				at = min(at, r.Priority)
			}
		}
		return at
	}
	return first(table) < first(unix.RT_TABLE_MAIN)
}

// foresee says, before there is an endpoint, what would keep it from being reached: a node that is not ready gets no
// pods. It does not wait for the lock.
func (s *segment) foresee() error {
	if !s.TryLock() {
		return nil
	}
	defer s.Unlock()
	if s.up {
		return nil
	}
	s.pods.mu.Lock()
	wanted := s.pods.wantedCIDRs()
	s.pods.mu.Unlock()
	h, err := routes()
	if err != nil {
		return err
	}
	defer h.Close()
	var gateways []netip.Prefix
	for _, c := range wanted {
		gateways = append(gateways, netip.PrefixFrom(c.Addr().Next(), c.Bits()))
	}
	return s.checkRoutes(h, gateways, false)
}

// chooseRange decides where addresses come from, if that is not decided, and writes it down.
func (s *segment) chooseRange(ctx context.Context, h *netlink.Handle) error {
	s.pods.mu.Lock()
	decided, wanted := len(s.pods.pools) > 0, s.pods.wantedCIDRs()
	s.pods.mu.Unlock()
	if decided {
		return nil
	}
	v6, err := ipv6Enabled()
	if err != nil {
		return err
	}
	cidrs := wanted
	if !v6 {
		s.sayNoIPv6()
		cidrs = ofIPv4(wanted)
	}
	if len(cidrs) == 0 {
		if len(wanted) > 0 {
			return fmt.Errorf("pod CIDR %s: IPv6 is disabled on the node: %w", cidrText(wanted),
				errdefs.ErrFailedPrecondition)
		}
		unlock, err := lockRanges(ctx, s.log)
		if err != nil {
			return err
		}
		defer unlock()
		if cidrs, err = chooseCIDRs(h, s.cfg.Name, s.cfg.StateDir, v6); err != nil {
			return err
		}
		// The bridge takes the range in the kernel while the lock is held.
		if err := s.pods.decide(cidrs); err != nil {
			return err
		}
		var gateways []netip.Prefix
		for _, c := range cidrs {
			gateways = append(gateways, netip.PrefixFrom(c.Addr().Next(), c.Bits()))
		}
		_, err = makeBridge(ctx, h, s.cfg.Name, defaultMTU, gateways)
		return err
	}
	return s.pods.decide(cidrs)
}

func (s *segment) sayNoIPv6() {
	s.noIPv6.Do(func() { s.log.Info("IPv6 is disabled on the node: pods get none", "bridge", s.cfg.Name) })
}

// dismantle removes bridge, table and the choice of the range, also where only some of it is there. The lock is held,
// and there is no endpoint. What has kept the bridge from being built stays the problem: it is tried again, see check.
func (s *segment) dismantle() error {
	s.up, s.remains = false, true
	h, err := routes()
	if err != nil {
		return err
	}
	defer h.Close()
	left, err := ourVeths(h, s.cfg.Name)
	if err != nil {
		return err
	}
	for name := range left {
		if err := removeLink(name); err != nil {
			return err
		}
	}
	if err := removeBridge(h, s.cfg.Name); err != nil {
		return err
	}
	if err := s.ports.drop(); err != nil {
		return err
	}
	s.pods.mu.Lock()
	s.pods.pools = nil
	s.pods.mu.Unlock()
	if err := removeFile(filepath.Join(s.cfg.StateDir, networkFile)); err != nil {
		return err
	}
	if err := s.pods.dropUnused(); err != nil {
		return err
	}
	s.remains = false
	return nil
}

// intact tells whether bridge, sysctls and table are what they must be, and packets to pods go there. The lock is held.
func (s *segment) intact() (bool, error) {
	s.pods.mu.Lock()
	users := len(s.pods.records)
	s.pods.mu.Unlock()
	if users == 0 {
		return true, nil
	}
	if !s.up {
		return false, nil
	}
	h, err := routes()
	if err != nil {
		return false, err
	}
	defer h.Close()
	link, err := h.LinkByName(s.cfg.Name)
	if isNoLink(err) || err == nil && link.Attrs().Index != s.index {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("bridge %s: %w", s.cfg.Name, err)
	}
	addrs, err := globalAddrs(h, link)
	if err != nil {
		return false, err
	}
	v6Addresses, err := canHaveIPv6(s.cfg.Name)
	if err != nil {
		return false, err
	}
	s.pods.mu.Lock()
	was := !s.pods.noIPv6
	s.pods.mu.Unlock()
	if v6Addresses != was {
		return false, nil
	}
	s.ports.Lock()
	defer s.ports.Unlock()
	rules, ports := s.ports.wanted()
	var v4, v6 bool
	var gateways []netip.Prefix
	for _, cidr := range rules.cidrs {
		gateway := cidr.Addr().Next()
		gateways = append(gateways, netip.PrefixFrom(gateway, cidr.Bits()))
		v4, v6 = v4 || gateway.Is4(), v6 || gateway.Is6()
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return prefixOf(a.IPNet).Addr() == gateway }) {
			return false, nil
		}
	}
	if on, err := forwards(s.cfg.Name, v4, v6); err != nil || !on {
		return false, err
	}
	if s.checkRoutes(h, gateways, true) != nil {
		return false, nil // the repair says so
	}
	return rules.whole(ports)
}

// repair builds bridge and table again around the endpoints that are there, and returns the interfaces: see ourVeths.
func (s *segment) repair(ctx context.Context) (have map[string]int, err error) {
	s.Lock()
	defer s.Unlock()
	s.up = false
	if err := s.build(ctx); err != nil {
		return nil, err
	}
	h, err := routes()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if have, err = ourVeths(h, s.cfg.Name); err != nil {
		return nil, err
	}
	s.pods.mu.Lock()
	var records []*record
	for _, r := range s.pods.records {
		records = append(records, r)
	}
	s.pods.mu.Unlock()
	var errs []error
	joined := false
	for _, r := range records {
		if master, ok := have[r.Link]; ok && master != s.index {
			errs = append(errs, s.join(r))
			joined = true
		}
	}
	if joined {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_ = awaitCarrier(short, h, s.cfg.Name) // there is none where the pods' ends are gone
	}
	return have, errors.Join(errs...)
}

// followMTU makes the MTU of the node's default route that of the bridge and of new endpoints, if it has changed and
// two checks find the same: a route may go for a moment, and another one be the default one meanwhile. Where there is
// no default route, all stays as it is. Endpoints that are there keep their MTU: programs in them have taken it up.
func (s *segment) followMTU() (changed bool, err error) {
	s.Lock()
	defer s.Unlock()
	if !s.up || s.cfg.MTU != 0 {
		return false, nil
	}
	h, err := routes()
	if err != nil {
		return false, err
	}
	defer h.Close()
	found, ok := uplinkMTU(h)
	if !ok || found == s.mtu {
		s.nextMTU = 0
		return false, nil
	}
	if found != s.nextMTU {
		s.nextMTU = found
		return false, nil
	}
	link, err := h.LinkByName(s.cfg.Name)
	if err == nil {
		err = h.LinkSetMTU(link, found)
	}
	if err != nil {
		return false, fmt.Errorf("set MTU of bridge %s to %d: %w", s.cfg.Name, found, err)
	}
	s.mtu, s.nextMTU = found, 0
	s.log.Info("the MTU of the node's default route has changed: pods that start from now on have it",
		"bridge", s.cfg.Name, "mtu", found)
	return true, nil
}

// join puts the interface of an endpoint on the bridge. The lock is held.
func (s *segment) join(r *record) error {
	v := veth{name: r.Link, alias: r.ID, master: s.index, ipv6: s.ipv6}
	if err := v.enslave(); err != nil && !isNoLink(err) {
		return fmt.Errorf("join interface %s to bridge %s: %w", r.Link, s.cfg.Name, err)
	}
	return nil
}

// rejoin puts the interface of an endpoint, which is a port of master, back on the bridge if that is another.
func (s *segment) rejoin(r *record, master int) error {
	s.Lock()
	defer s.Unlock()
	if !s.up || master == s.index {
		return nil
	}
	s.log.Warn("the interface of a pod has left the bridge; putting it back", "bridge", s.cfg.Name, "pod", r.Pod)
	return s.join(r)
}
