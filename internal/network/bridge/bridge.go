package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth/internal/network/keylock"

	"github.com/containerd/errdefs"
)

// Config says what a bridge is.
type Config struct {
	Name     string         // of the interface, at most 15 characters
	CIDRs    []netip.Prefix // at most one of each family; none: chosen from private ranges that the node does not use
	MTU      int            // 0: that of the interface of the node's default route
	StateDir string         // for records; made if it is not there
	// Linger is how long bridge and table stay after the last endpoint went. 0: 2 s; less: they go at once.
	Linger time.Duration
	// Background has Detach return before the kernel has removed an endpoint's interface, which takes it a grace period. The
	// record, and with it the address, stays until then.
	Background bool
	Logger     *slog.Logger
}

const (
	defaultLinger = 2 * time.Second
	checkInterval = 10 * time.Second
	settle        = time.Second
)

// Bridge is the network of the endpoints on one bridge. It works in the network namespace of its process.
type Bridge struct {
	cfg    Config
	log    *slog.Logger
	stop   context.CancelFunc
	done   sync.WaitGroup
	ending chan struct{} // wakes the keeper of the fabric after the last endpoint went
	ids    keylock.Lock  // one operation at a time for an endpoint

	// fabric guards what endpoints have in common: bridge and table. It is taken before mu. It is held while they are
	// made and removed, and while they are checked.
	fabric sync.Mutex
	up     bool // both are in place, as far as is known
	// remains: some of it may be left of a removal that failed.
	remains bool
	index   int // of the bridge
	mtu     int
	ipv6    bool // interfaces can have IPv6 addresses

	// tables makes transactions with the table one after another, so that each sees the records that it is made from.
	// It is taken before mu.
	tables sync.Mutex

	mu       sync.Mutex
	records  map[string]*record
	stuck    map[string]bool // endpoints that could not be detached in the background
	entering int             // endpoints that are being attached and may have no record yet
	pools    []*pool         // IPv4 first as configured; empty: not chosen
	node     []netip.Prefix
	former   []netip.Prefix // the range of an earlier process's endpoints
	idle     time.Time      // since when there is no endpoint
	problem  error          // why the fabric is not in place
	closed   bool
	noIPv6   sync.Once
}

// Open reads what is on disk. It changes nothing in the kernel: the first endpoint and Reconcile do.
func Open(cfg Config) (*Bridge, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Linger == 0 {
		cfg.Linger = defaultLinger
	}
	if len(cfg.Name) == 0 || len(cfg.Name) > 15 {
		return nil, fmt.Errorf("bridge %q: an interface's name has 1 to 15 characters: %w", cfg.Name,
			errdefs.ErrInvalidArgument)
	}
	if cfg.MTU != 0 && (cfg.MTU < 1280 || cfg.MTU > 65535) {
		return nil, fmt.Errorf("bridge %s: MTU %d is not between 1280 and 65535: %w", cfg.Name, cfg.MTU,
			errdefs.ErrInvalidArgument)
	}
	if err := CheckCIDRs(cfg.CIDRs); err != nil {
		return nil, err
	}
	dir := filepath.Join(cfg.StateDir, endpointsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	b := &Bridge{cfg: cfg, log: cfg.Logger, records: map[string]*record{}, stuck: map[string]bool{}, ending: make(chan struct{}, 1)}
	if err := b.load(dir); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.done.Go(func() { b.watch(ctx) })
	return b, nil
}

func (b *Bridge) load(dir string) error {
	records, err := loadRecords(dir, b.log)
	if err != nil {
		return err
	}
	if err := b.loadNode(); err != nil {
		return err
	}
	var n network
	known, spoilt, err := readFile(filepath.Join(b.cfg.StateDir, networkFile), &n)
	if err != nil {
		return err
	}
	if spoilt != nil {
		b.log.Warn("the record of the pods' range is spoilt", "error", spoilt)
	}
	slices.SortFunc(records, func(a, c *record) int { return a.Created.Compare(c.Created) })
	for _, r := range records {
		b.records[r.ID] = r
	}
	if known && spoilt == nil && CheckCIDRs(n.CIDRs) == nil {
		b.former = n.CIDRs
	}
	if len(records) == 0 || len(b.former) == 0 {
		return nil
	}
	if want := b.wantedCIDRs(); len(want) > 0 && !slices.Equal(want, b.former) {
		b.log.Warn("pods live in another range than is configured; it changes when none is left",
			"range", cidrText(b.former), "configured", cidrText(want))
	}
	return b.setPools(b.former)
}

// loadNode reads what SetCIDRs was last given, from the second file where the first is spoilt or gone.
func (b *Bridge) loadNode() error {
	for _, name := range []string{nodeFile, nodeSpare} {
		var n network
		path := filepath.Join(b.cfg.StateDir, name)
		found, spoilt, err := readFile(path, &n)
		if err != nil {
			return err
		}
		if found && spoilt != nil { // an earlier version of berthd wrote a list
			_, spoilt, err = readFile(path, &n.CIDRs)
		}
		if err != nil {
			return err
		}
		if spoilt == nil {
			spoilt = CheckCIDRs(n.CIDRs)
		}
		if spoilt != nil {
			b.log.Warn("a record of the node's range is spoilt", "file", path, "error", spoilt)
		} else if len(n.CIDRs) > 0 {
			b.node = n.CIDRs
			return b.saveNode(n.CIDRs)
		}
	}
	return nil
}

// saveNode writes both records of the node's range.
func (b *Bridge) saveNode(cidrs []netip.Prefix) error {
	n := network{CIDRs: cidrs}
	return errors.Join(writeFile(filepath.Join(b.cfg.StateDir, nodeFile), n), writeFile(filepath.Join(b.cfg.StateDir, nodeSpare), n))
}

// wantedCIDRs are those of the configuration, else those that the node was told. None: to be chosen.
func (b *Bridge) wantedCIDRs() []netip.Prefix {
	if len(b.cfg.CIDRs) > 0 {
		return b.cfg.CIDRs
	}
	return b.node
}

// setPools decides where addresses come from. Those of the records are taken.
func (b *Bridge) setPools(cidrs []netip.Prefix) error {
	var pools []*pool
	for _, c := range cidrs {
		p, err := newPool(c)
		if err != nil {
			return err
		}
		pools = append(pools, p)
	}
	b.pools = pools
	records := slices.SortedFunc(maps.Values(b.records), func(a, c *record) int { return a.Created.Compare(c.Created) })
	for _, r := range records {
		b.claim(r)
	}
	return nil
}

// claim takes a record's addresses, and returns those that are not to be had. mu is held, or nobody else has the bridge yet.
func (b *Bridge) claim(r *record) (others []netip.Addr) {
	for _, addr := range r.Addresses {
		if !slices.ContainsFunc(b.pools, func(p *pool) bool {
			ok := p.claim(r.ID, addr)
			if ok {
				p.store.last = addr
			}
			return ok
		}) {
			others = append(others, addr)
		}
	}
	return others
}

// Attach joins an endpoint to the bridge, all or nothing, and returns its addresses, in the order of the ranges. An
// endpoint that is on record, because it was attached before, gets the same addresses.
func (b *Bridge) Attach(ctx context.Context, e Endpoint) ([]netip.Addr, error) {
	if err := ValidatePorts(e.Ports); err != nil {
		return nil, err
	}
	ns, err := openNamespace(e.NetNS)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	defer b.ids.Lock(e.ID)()
	if err := b.enter(ctx); err != nil {
		return nil, err
	}
	defer b.leave()

	old, err := b.settled(ctx, e.ID)
	if err != nil {
		return nil, err
	}
	if old != nil {
		if err := b.detach(old, false); err != nil {
			return nil, err
		}
	}
	r, err := b.reserve(e, old)
	for errors.Is(err, errdefs.ErrResourceExhausted) {
		// Addresses of endpoints that are on their way out are as good as free.
		waited, werr := b.awaitLeaving(ctx, 1)
		if werr != nil || !waited {
			break
		}
		r, err = b.reserve(e, old)
	}
	if err != nil {
		return nil, err
	}
	addrs, err := b.attach(ctx, r, ns)
	if err != nil {
		if undo := b.detach(r, old == nil); undo != nil {
			b.log.Error("what is left of a failed network set-up goes at the next try", "pod", r.Pod, "error", undo)
		}
		return nil, err
	}
	return addrs, nil
}

func (b *Bridge) attach(ctx context.Context, r *record, ns *os.File) ([]netip.Addr, error) {
	if err := checkListeners(r.hostPorts); err != nil {
		return nil, err
	}
	if err := writeFile(b.recordPath(r.ID), r); err != nil {
		return nil, fmt.Errorf("record of the pod's network: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	addrs, err := b.connect(ctx, r, ns)
	if err != nil {
		return nil, err
	}
	if len(r.hostPorts) == 0 {
		return addrs, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := b.openPorts(r); err != nil {
		return nil, err
	}
	return addrs, forgetFlows(r.hostPorts)
}

// connect makes the pod's interface. Where the bridge went away, it is made again.
func (b *Bridge) connect(ctx context.Context, r *record, ns *os.File) ([]netip.Addr, error) {
	b.fabric.Lock()
	v := veth{name: r.Link, alias: r.ID, mac: podMAC(r.Addresses[0]), mtu: b.mtu, master: b.index, ipv6: b.ipv6}
	b.fabric.Unlock()
	err := v.create(ns)
	if errors.Is(err, os.ErrExist) {
		// Of an earlier time: the same pod's, since its ID is in the name.
		if err := removeLink(v.name); err != nil {
			return nil, err
		}
		err = v.create(ns)
	}
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("network namespace %s has an interface %s already: %w", ns.Name(), Interface,
			errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		err = v.enslave()
	}
	if err != nil {
		if fixed := b.repair(ctx); fixed != nil {
			return nil, fmt.Errorf("make interface %s: %w", v.name, errors.Join(err, fixed))
		}
		b.fabric.Lock()
		v.master = b.index
		b.fabric.Unlock()
		if err := removeLink(v.name); err != nil {
			return nil, err
		}
		if err := v.create(ns); err != nil {
			return nil, fmt.Errorf("make interface %s: %w", v.name, err)
		}
		if err := v.enslave(); err != nil {
			return nil, fmt.Errorf("join interface %s to bridge %s: %w", v.name, b.cfg.Name, err)
		}
	}
	prefixes, gateways := b.prefixes(r)
	addrs, err := configure(ctx, ns, prefixes, gateways)
	if err != nil {
		return nil, err
	}
	h, err := routes()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return addrs, errors.Join(awaitCarrier(ctx, h, v.name), awaitCarrier(ctx, h, b.cfg.Name))
}

func (b *Bridge) prefixes(r *record) (prefixes []netip.Prefix, gateways []netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, addr := range r.Addresses {
		for _, p := range b.pools {
			if p.prefix.Contains(addr) {
				prefixes = append(prefixes, netip.PrefixFrom(addr, p.prefix.Bits()))
				gateways = append(gateways, p.gateway)
			}
		}
	}
	return prefixes, gateways
}

// reserve puts the endpoint on record in memory, with addresses and host ports that no other has: the addresses of its
// old record, if it has one.
func (b *Bridge) reserve(e Endpoint, old *record) (*record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &record{
		ID: e.ID, Pod: e.Pod, NetNS: e.NetNS, Link: vethName(b.cfg.Name, e.ID), Ports: e.Ports, Created: time.Now().UTC(),
	}
	for id, other := range b.records {
		if id != e.ID && other.Link == r.Link {
			return nil, fmt.Errorf("the name of the pod's interface is that of pod %s (%s): %w", other.Pod, id,
				errdefs.ErrFailedPrecondition)
		}
	}
	release := func() {
		if old != nil {
			return
		}
		for _, p := range b.pools {
			p.store.ReleaseByID(e.ID, Interface)
		}
	}
	for _, p := range b.pools {
		var wanted netip.Addr
		if old != nil {
			for _, addr := range old.Addresses {
				if addr.Is4() == p.prefix.Addr().Is4() {
					wanted = addr
				}
			}
		}
		addr, err := p.get(e.ID, wanted)
		if err != nil {
			release()
			return nil, err
		}
		r.Addresses = append(r.Addresses, addr)
	}
	var err error
	if r.hostPorts, err = hostPorts(e.Ports, r.Addresses); err == nil {
		err = b.checkConflicts(r)
	}
	if err != nil {
		release()
		return nil, err
	}
	b.records[r.ID] = r
	return r, nil
}

func (b *Bridge) checkConflicts(r *record) error {
	if len(r.hostPorts) == 0 {
		return nil
	}
	for id, other := range b.records {
		if id == r.ID {
			continue
		}
		for _, theirs := range other.hostPorts {
			for _, ours := range r.hostPorts {
				if ours.overlaps(theirs) {
					return fmt.Errorf("host port %s is taken by pod %s (%s): %w", ours, other.Pod, id,
						errdefs.ErrFailedPrecondition)
				}
			}
		}
	}
	return nil
}

func (b *Bridge) rules() ruleset {
	s := ruleset{bridge: b.cfg.Name}
	for _, p := range b.pools {
		s.cidrs = append(s.cidrs, p.prefix)
	}
	return s
}

// openedPorts are the host ports that belong in the table. tables and mu are held.
func (b *Bridge) openedPorts() []hostPort {
	var all []hostPort
	for _, r := range b.records {
		if r.open {
			all = append(all, r.hostPorts...)
		}
	}
	return all
}

// openPorts puts an endpoint's host ports into the table. Where the table is not what the records say, it is replaced.
func (b *Bridge) openPorts(r *record) error {
	b.tables.Lock()
	defer b.tables.Unlock()
	r.open = true
	rules, all := b.table()
	if rules.add(r.hostPorts) == nil {
		return nil
	}
	if err := rules.replace(all); err != nil {
		r.open = false
		return fmt.Errorf("host ports of pod %s: %w", r.Pod, err)
	}
	return nil
}

func (b *Bridge) closePorts(r *record) error {
	b.tables.Lock()
	defer b.tables.Unlock()
	r.open = false
	rules, others := b.table()
	if rules.remove(r.hostPorts) == nil {
		return nil
	}
	there, err := rules.there()
	if err == nil && there {
		err = rules.replace(others)
	}
	if err != nil {
		return fmt.Errorf("remove the host ports of pod %s: %w", r.Pod, err)
	}
	return nil
}

// table is what the table must be. tables is held.
func (b *Bridge) table() (ruleset, []hostPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rules(), b.openedPorts()
}

// Detach removes all that is of an endpoint. It is idempotent, and does not need the network namespace.
//
// Host ports are free when it returns. An endpoint without any may leave the kernel in the background; what cannot be
// removed there is tried again, and by the next Reconcile.
func (b *Bridge) Detach(_ context.Context, id string) error {
	defer b.ids.Lock(id)()
	b.mu.Lock()
	r := b.records[id]
	if r == nil || r.leaving != nil {
		b.mu.Unlock()
		return nil
	}
	background := b.cfg.Background && !b.closed && len(r.hostPorts) == 0
	if background {
		r.leaving = make(chan struct{})
		b.done.Add(1)
	}
	b.mu.Unlock()
	if !background {
		return b.detach(r, true)
	}
	go func() {
		defer b.done.Done()
		b.retire(r)
	}()
	return nil
}

// retire detaches an endpoint that nobody waits for.
func (b *Bridge) retire(r *record) {
	err := b.detach(r, true)
	b.mu.Lock()
	done := r.leaving
	if err != nil {
		r.leaving = nil // whoever wants the endpoint tries again
		b.stuck[r.ID] = true
	}
	b.mu.Unlock()
	close(done)
	if err != nil {
		b.log.Error("the interface of a pod that is gone could not be removed; it is tried again", "pod", r.Pod, "error", err)
	}
}

// retry detaches again what could not be detached in the background.
func (b *Bridge) retry(ctx context.Context) {
	b.mu.Lock()
	stuck := slices.Collect(maps.Keys(b.stuck))
	clear(b.stuck)
	b.mu.Unlock()
	for _, id := range stuck {
		if err := b.Detach(ctx, id); err != nil {
			b.log.Error("remove what is left of a pod's network", "id", id, "error", err)
		}
	}
}

// settled is the record of an endpoint, once it is not on its way out. The caller has locked its ID.
func (b *Bridge) settled(ctx context.Context, id string) (*record, error) {
	for {
		b.mu.Lock()
		r := b.records[id]
		var leaving chan struct{}
		if r != nil {
			leaving = r.leaving
		}
		b.mu.Unlock()
		if leaving == nil {
			return r, nil
		}
		select {
		case <-leaving:
		case <-ctx.Done():
			return nil, fmt.Errorf("the pod's former network is being removed: %w", ctx.Err())
		}
	}
}

// awaitLeaving waits for so many of the endpoints that are on their way out, at most; waited is false if there is none.
func (b *Bridge) awaitLeaving(ctx context.Context, count int) (waited bool, err error) {
	b.mu.Lock()
	var leaving []chan struct{}
	for _, r := range b.records {
		if r.leaving != nil && len(leaving) < count {
			leaving = append(leaving, r.leaving)
		}
	}
	b.mu.Unlock()
	for _, gone := range leaving {
		select {
		case <-gone:
			waited = true
		case <-ctx.Done():
			return waited, ctx.Err()
		}
	}
	return waited, nil
}

// detach takes an endpoint out of the kernel; with forget also off the record, last.
func (b *Bridge) detach(r *record, forget bool) error {
	// Both wait for a grace period of the kernel, 10 ms and more: for the same one when side by side.
	ports := make(chan error, 1)
	go func() {
		if len(r.hostPorts) == 0 {
			ports <- nil
			return
		}
		err := b.closePorts(r)
		if err := forgetFlows(r.hostPorts); err != nil {
			b.log.Warn("clients of the pod's UDP host ports may have to wait", "pod", r.Pod, "error", err)
		}
		ports <- err
	}()
	if err := errors.Join(removeLink(r.Link), <-ports); err != nil {
		return err
	}
	if !forget {
		return nil
	}
	if err := removeFile(b.recordPath(r.ID)); err != nil {
		return err
	}
	b.mu.Lock()
	delete(b.records, r.ID)
	for _, p := range b.pools {
		for _, addr := range r.Addresses {
			delete(p.store.owners, addr)
		}
	}
	b.mu.Unlock()
	b.wake()
	return nil
}

// Has tells whether an endpoint is on record.
func (b *Bridge) Has(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records[id] != nil
}

// SetCIDRs changes the ranges that addresses come from. ErrFailedPrecondition: the configuration names others, or
// endpoints have addresses of the ones that are in use.
func (b *Bridge) SetCIDRs(ctx context.Context, cidrs []netip.Prefix) error {
	if err := CheckCIDRs(cidrs); err != nil {
		return err
	}
	if _, err := b.awaitLeaving(ctx, math.MaxInt); err != nil {
		return err
	}
	b.fabric.Lock()
	defer b.fabric.Unlock()
	b.mu.Lock()
	configured, users := b.cfg.CIDRs, len(b.records)+b.entering
	now := b.rules().cidrs
	b.mu.Unlock()
	switch {
	case len(configured) > 0 && !slices.Equal(configured, cidrs):
		return fmt.Errorf("pod CIDR %s: the configuration names %s: %w", cidrText(cidrs), cidrText(configured),
			errdefs.ErrFailedPrecondition)
	case len(configured) > 0:
		return nil
	case users > 0 && !slices.Equal(now, cidrs):
		return fmt.Errorf("pod CIDR %s: %d pods have addresses of %s: %w", cidrText(cidrs), users, cidrText(now),
			errdefs.ErrFailedPrecondition)
	}
	if err := b.saveNode(cidrs); err != nil {
		return err
	}
	b.mu.Lock()
	b.node = cidrs
	b.mu.Unlock()
	if users == 0 && !slices.Equal(now, cidrs) {
		return b.dismantle() // the next endpoint builds it in the new range
	}
	return nil
}

// NodeCIDRs are what SetCIDRs was last given.
func (b *Bridge) NodeCIDRs() []netip.Prefix {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.node
}

// Health says why endpoints cannot be attached, as far as is known; nil: they can.
func (b *Bridge) Health() error {
	b.mu.Lock()
	problem := b.problem
	b.mu.Unlock()
	if problem != nil {
		return problem
	}
	_, err := inetTables()
	return err
}

// Purge removes bridge, table and range at once. ErrFailedPrecondition: there are endpoints.
func (b *Bridge) Purge() error {
	if _, err := b.awaitLeaving(context.Background(), math.MaxInt); err != nil {
		return err
	}
	b.fabric.Lock()
	defer b.fabric.Unlock()
	b.mu.Lock()
	users := len(b.records) + b.entering
	b.mu.Unlock()
	if users > 0 {
		return fmt.Errorf("bridge %s has %d pods: %w", b.cfg.Name, users, errdefs.ErrFailedPrecondition)
	}
	return b.dismantle()
}

// Close ends the watch. Endpoints keep their network; a bridge that has none does not linger.
func (b *Bridge) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	b.done.Wait()
	b.fabric.Lock()
	defer b.fabric.Unlock()
	b.mu.Lock()
	users := len(b.records) + b.entering
	b.mu.Unlock()
	if users > 0 || !b.up {
		return nil
	}
	return b.dismantle()
}
