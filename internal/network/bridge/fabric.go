package bridge

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
)

// enter makes sure that bridge and table are there, and that they stay until leave.
func (b *Bridge) enter(ctx context.Context) error {
	b.fabric.Lock()
	defer b.fabric.Unlock()
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return fmt.Errorf("bridge %s is closed: %w", b.cfg.Name, errdefs.ErrUnavailable)
	}
	b.entering++
	b.mu.Unlock()
	if err := b.build(ctx); err != nil {
		b.leave()
		return err
	}
	return nil
}

func (b *Bridge) leave() {
	b.mu.Lock()
	b.entering--
	b.mu.Unlock()
	b.wake()
}

// wake tells the watch that the last endpoint may have gone.
func (b *Bridge) wake() {
	b.mu.Lock()
	idle := len(b.records)+b.entering == 0
	if idle {
		b.idle = time.Now()
	}
	b.mu.Unlock()
	if !idle {
		return
	}
	select {
	case b.ending <- struct{}{}:
	default:
	}
}

// build puts bridge, sysctls and table in place. fabric is held.
func (b *Bridge) build(ctx context.Context) error {
	if b.up {
		return nil
	}
	err := b.buildAll(ctx)
	b.up = err == nil
	b.mu.Lock()
	b.problem = err
	b.mu.Unlock()
	return err
}

func (b *Bridge) buildAll(ctx context.Context) error {
	h, err := routes()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := b.chooseRange(ctx, h); err != nil {
		return err
	}
	b.mu.Lock()
	pools := b.pools
	b.mu.Unlock()
	if b.ipv6, err = ipv6Enabled(); err != nil {
		return err
	}
	b.mtu = b.cfg.MTU
	if b.mtu == 0 {
		b.mtu = uplinkMTU(h)
	}
	var gateways []netip.Prefix
	var v4, v6 bool
	for _, p := range pools {
		gateways = append(gateways, netip.PrefixFrom(p.gateway, p.prefix.Bits()))
		v4, v6 = v4 || p.gateway.Is4(), v6 || p.gateway.Is6()
	}
	if b.index, err = makeBridge(ctx, h, b.cfg.Name, b.mtu, gateways); err != nil {
		return err
	}
	if err := forward(h, b.cfg.Name, b.index, v4, v6); err != nil {
		return err
	}
	if err := b.replaceTable(); err != nil {
		return err
	}
	if others := dropsForwarded(tableName(b.cfg.Name)); len(others) > 0 {
		b.log.Warn("another table drops what is forwarded: let the bridge through there, or pods reach nothing outside",
			"bridge", b.cfg.Name, "chains", strings.Join(others, ", "))
	}
	return nil
}

func (b *Bridge) replaceTable() error {
	b.tables.Lock()
	defer b.tables.Unlock()
	rules, ports := b.table()
	return rules.replace(ports)
}

// chooseRange decides where addresses come from, if that is not decided, and writes it down.
func (b *Bridge) chooseRange(ctx context.Context, h *netlink.Handle) error {
	b.mu.Lock()
	decided, wanted := len(b.pools) > 0, b.wantedCIDRs()
	b.mu.Unlock()
	if decided {
		return nil
	}
	v6, err := ipv6Enabled()
	if err != nil {
		return err
	}
	cidrs := wanted
	if !v6 {
		b.noIPv6.Do(func() { b.log.Info("IPv6 is disabled on the node: pods get none", "bridge", b.cfg.Name) })
		cidrs = slices.DeleteFunc(slices.Clone(wanted), func(p netip.Prefix) bool { return p.Addr().Is6() })
	}
	if len(cidrs) == 0 {
		if len(wanted) > 0 {
			return fmt.Errorf("pod CIDR %s: IPv6 is disabled on the node: %w", cidrText(wanted),
				errdefs.ErrFailedPrecondition)
		}
		unlock, err := lockRanges(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		if cidrs, err = chooseCIDRs(h, b.cfg.Name, b.cfg.StateDir, v6); err != nil {
			return err
		}
		// The bridge takes the range in the kernel while the lock is held.
		if err := b.decide(cidrs); err != nil {
			return err
		}
		var gateways []netip.Prefix
		for _, c := range cidrs {
			gateways = append(gateways, netip.PrefixFrom(c.Addr().Next(), c.Bits()))
		}
		_, err = makeBridge(ctx, h, b.cfg.Name, defaultMTU, gateways)
		return err
	}
	return b.decide(cidrs)
}

func (b *Bridge) decide(cidrs []netip.Prefix) error {
	if err := writeFile(filepath.Join(b.cfg.StateDir, networkFile), network{CIDRs: cidrs}); err != nil {
		return fmt.Errorf("record of the pods' range: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.setPools(cidrs)
}

// dismantle removes bridge, table and the choice of the range. fabric is held, and there is no endpoint.
func (b *Bridge) dismantle() error {
	b.up, b.remains = false, true
	h, err := routes()
	if err != nil {
		return err
	}
	defer h.Close()
	left, err := ourVeths(h, b.cfg.Name)
	if err != nil {
		return err
	}
	for name := range left {
		if err := removeLink(name); err != nil {
			return err
		}
	}
	if err := removeBridge(h, b.cfg.Name); err != nil {
		return err
	}
	b.tables.Lock()
	err = ruleset{bridge: b.cfg.Name}.drop()
	b.tables.Unlock()
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.pools, b.problem = nil, nil
	b.mu.Unlock()
	if err := removeFile(filepath.Join(b.cfg.StateDir, networkFile)); err != nil {
		return err
	}
	b.remains = false
	return nil
}

// watch removes the fabric some time after the last endpoint went, and repairs it where somebody else removed it: flushed
// the ruleset of the node, say, or restarted a network service that removes interfaces it does not know.
func (b *Bridge) watch(ctx context.Context) {
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	linger := time.NewTimer(time.Hour)
	linger.Stop()
	defer linger.Stop()
	removed := b.listen(ctx)
	var soon <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.ending:
			linger.Reset(max(b.cfg.Linger, 0))
		case <-linger.C:
			b.expire()
		case <-removed:
			if soon == nil { // not at once: a firewall that is loaded anew flushes first, and then fills
				soon = time.After(settle)
			}
		case <-soon:
			soon = nil
			b.check(ctx)
		case <-check.C:
			b.check(ctx)
			b.retry(ctx)
			b.mu.Lock()
			over := time.Since(b.idle) > b.cfg.Linger
			b.mu.Unlock()
			if over {
				b.expire() // what could not be removed when it was time
			}
		}
	}
}

func (b *Bridge) expire() {
	b.fabric.Lock()
	defer b.fabric.Unlock()
	b.mu.Lock()
	idle := len(b.records)+b.entering == 0
	b.mu.Unlock()
	if !idle || !b.up && !b.remains {
		return
	}
	if err := b.dismantle(); err != nil {
		b.log.Error("the bridge of no pod could not be removed", "bridge", b.cfg.Name, "error", err)
	}
}

// check looks whether all is in place, and repairs what is not.
func (b *Bridge) check(ctx context.Context) {
	b.fabric.Lock()
	intact, err := b.intact()
	b.fabric.Unlock()
	if err != nil || !intact {
		b.log.Warn("the pods' network was changed from outside; repairing it", "bridge", b.cfg.Name)
		if err := b.repair(ctx); err != nil {
			b.log.Error("the pods' network could not be repaired", "bridge", b.cfg.Name, "error", err)
			return
		}
	}
	lost, err := b.lost()
	if err != nil {
		b.log.Error("interfaces of pods could not be listed", "bridge", b.cfg.Name, "error", err)
	}
	for _, r := range lost {
		r.restored = time.Now()
		if err := b.restore(ctx, r, r.NetNS); err != nil {
			b.log.Error("a pod has lost its interface, and gets none", "pod", r.Pod, "error", err)
		}
	}
}

// lost are the endpoints without an interface. Some may be on their way in or out. One that has lost it again and again, as a pod may that
// removes it itself, has to wait.
func (b *Bridge) lost() (list []*record, err error) {
	b.mu.Lock()
	users := len(b.records)
	b.mu.Unlock()
	if users == 0 {
		return nil, nil
	}
	h, err := routes()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	have, err := ourVeths(h, b.cfg.Name)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.records {
		if _, ok := have[r.Link]; !ok && r.leaving == nil && !b.stuck[r.ID] && time.Since(r.restored) >= checkInterval {
			list = append(list, r)
		}
	}
	return list, nil
}

// intact tells whether bridge and table are what they must be. fabric is held.
func (b *Bridge) intact() (bool, error) {
	b.mu.Lock()
	users := len(b.records)
	b.mu.Unlock()
	if users == 0 {
		return true, nil
	}
	if !b.up {
		return false, nil
	}
	h, err := routes()
	if err != nil {
		return false, err
	}
	defer h.Close()
	link, err := h.LinkByName(b.cfg.Name)
	if isNoLink(err) || err == nil && link.Attrs().Index != b.index {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("bridge %s: %w", b.cfg.Name, err)
	}
	addrs, err := globalAddrs(h, link)
	if err != nil {
		return false, err
	}
	b.tables.Lock()
	defer b.tables.Unlock()
	rules, ports := b.table()
	for _, cidr := range rules.cidrs {
		gateway := cidr.Addr().Next()
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return prefixOf(a.IPNet).Addr() == gateway }) {
			return false, nil
		}
	}
	return rules.whole(ports)
}

// repair builds the fabric again around the endpoints that are there.
func (b *Bridge) repair(ctx context.Context) error {
	b.fabric.Lock()
	defer b.fabric.Unlock()
	b.up = false
	if err := b.build(ctx); err != nil {
		return err
	}
	h, err := routes()
	if err != nil {
		return err
	}
	defer h.Close()
	have, err := ourVeths(h, b.cfg.Name)
	if err != nil {
		return err
	}
	b.mu.Lock()
	var records []*record
	for _, r := range b.records {
		records = append(records, r)
	}
	b.mu.Unlock()
	var errs []error
	joined := false
	for _, r := range records {
		if master, ok := have[r.Link]; ok && master != b.index {
			v := veth{name: r.Link, alias: r.ID, master: b.index, ipv6: b.ipv6}
			if err := v.enslave(); err != nil && !isNoLink(err) {
				errs = append(errs, fmt.Errorf("join interface %s to bridge %s: %w", r.Link, b.cfg.Name, err))
			}
			joined = true
		}
	}
	if joined {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_ = awaitCarrier(short, h, b.cfg.Name) // there is none where the pods' ends are gone
	}
	return errors.Join(errs...)
}

// Reconcile removes what is of no live endpoint, and puts in place again what live ones have lost, records too. live has the endpoints by
// their IDs; a network namespace that is not there (after a reboot) means that the endpoint only keeps its addresses.
// It must name every endpoint that is attached, or being attached, when it is called. lost are those whose records are gone
// and cannot be made anew: they have no network any more.
func (b *Bridge) Reconcile(ctx context.Context, live map[string]Endpoint) (lost map[string]error, err error) {
	lost = b.rebuild(live)
	return lost, b.reconcile(ctx, live)
}

func (b *Bridge) reconcile(ctx context.Context, live map[string]Endpoint) error {
	b.mu.Lock()
	var dead, alive []*record
	for id, r := range b.records {
		if _, ok := live[id]; ok {
			alive = append(alive, r)
		} else {
			dead = append(dead, r)
		}
	}
	b.mu.Unlock()
	var errs []error
	for _, r := range dead {
		if err := b.Detach(ctx, r.ID); err != nil {
			errs = append(errs, fmt.Errorf("pod %s (%s): %w", r.Pod, r.ID, err))
		}
	}
	if _, err := b.awaitLeaving(ctx, math.MaxInt); err != nil {
		return errors.Join(append(errs, err)...)
	}
	if err := errors.Join(b.removeStrays(), b.removeSpoilt()); err != nil {
		errs = append(errs, err)
	}
	if len(alive) == 0 {
		b.fabric.Lock()
		b.mu.Lock()
		users := len(b.records) + b.entering
		b.mu.Unlock()
		if users == 0 {
			errs = append(errs, b.dismantle())
		}
		b.fabric.Unlock()
		return errors.Join(errs...)
	}
	if err := b.repair(ctx); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, r := range alive {
		if err := b.restore(ctx, r, live[r.ID].NetNS); err != nil {
			errs = append(errs, fmt.Errorf("pod %s (%s): %w", r.Pod, r.ID, err))
		}
	}
	return errors.Join(errs...)
}

// removeStrays removes veths of no record. Records come before veths and go after them, so none is of an endpoint.
func (b *Bridge) removeStrays() error {
	h, err := routes()
	if err != nil {
		return err
	}
	defer h.Close()
	have, err := ourVeths(h, b.cfg.Name)
	if err != nil {
		return err
	}
	b.mu.Lock()
	for _, r := range b.records {
		delete(have, r.Link)
	}
	b.mu.Unlock()
	var errs []error
	for name := range have {
		errs = append(errs, removeLink(name))
	}
	return errors.Join(errs...)
}

// restore gives a live endpoint its interface back if that is gone and the namespace is not.
func (b *Bridge) restore(ctx context.Context, r *record, path string) error {
	defer b.ids.Lock(r.ID)()
	b.mu.Lock()
	current := b.records[r.ID]
	leaving := r.leaving != nil
	b.mu.Unlock()
	if current != r || leaving || path == "" {
		return nil
	}
	h, err := routes()
	if err != nil {
		return err
	}
	defer h.Close()
	if _, err := h.LinkByName(r.Link); !isNoLink(err) {
		return err
	}
	ns, err := openNamespace(path)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	b.log.Warn("the pod has lost its interface; making it again", "pod", r.Pod)
	_, err = b.connect(ctx, r, ns)
	return err
}
