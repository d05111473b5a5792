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

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/network/keylock"
)

// Config is the configuration of a Bridge.
type Config struct {
	Name  string         // of the interface, at most 15 characters
	CIDRs []netip.Prefix // at most one of each family; none: chosen from private ranges that the node does not use
	MTU   int            // 0: that of the interface of the node's default route
	// NonMasquerade are the destination ranges for which packets of pods keep the pod's source address, such as the ranges
	// of other nodes' pods.
	NonMasquerade []netip.Prefix
	StateDir      string // for records; made if it is not there
	// Linger is how long the bridge and the nftables table stay after the last endpoint was removed. 0: 2 s; negative:
	// they are removed at once.
	Linger time.Duration
	// Background makes Detach return before the kernel has removed an endpoint's interface, which takes an RCU grace
	// period. The record, and with it the address, stays until then.
	Background bool
	Logger     *slog.Logger
}

const (
	defaultLinger = 2 * time.Second
	checkInterval = 10 * time.Second
	quietTime     = time.Second
)

// Bridge is the network of the endpoints on one bridge. It works in the network namespace of its process. Each lock
// is in the part whose fields it guards.
type Bridge struct {
	cfg     Config
	log     *slog.Logger
	stop    context.CancelFunc
	closing <-chan struct{} // closed by stop
	done    sync.WaitGroup
	ending  chan struct{} // wakes the watch after the last endpoint was removed
	ids     keylock.Lock  // one operation at a time for an endpoint
	endWait time.Duration // how long a removal in the background waits for the end of the pod's network namespace

	segment  *segment   // taken first
	ports    *portTable // taken before pods
	pods     *endpoints
	firewall firewallWatch
}

// Open reads the records on disk. It changes nothing in the kernel: the first Attach and Reconcile do.
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
	pods := &endpoints{cfg: cfg, log: cfg.Logger, records: map[string]*record{}, stuck: map[string]bool{}}
	ports := &portTable{name: cfg.Name, pods: pods}
	b := &Bridge{
		cfg: cfg, log: cfg.Logger, ending: make(chan struct{}, 1), endWait: endWait, pods: pods, ports: ports,
		segment: &segment{cfg: cfg, log: cfg.Logger, pods: pods, ports: ports},
	}
	if err := b.pods.load(dir); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	b.stop, b.closing = stop, ctx.Done()
	b.done.Go(func() { b.watch(ctx) })
	return b, nil
}

// Attach joins an endpoint to the bridge, all or nothing, and returns its addresses, in the order of the ranges. An
// endpoint that is on record, because it was attached before, gets the same addresses.
func (b *Bridge) Attach(ctx context.Context, e Endpoint) ([]netip.Addr, error) {
	return b.join(ctx, e, b.makeRoom)
}

// join is Attach. Where there is no address or port left, room is asked for one, and says whether it has freed any.
func (b *Bridge) join(ctx context.Context, e Endpoint, room func(context.Context) bool) ([]netip.Addr, error) {
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

	old, err := b.pods.afterRemoval(ctx, e.ID)
	if err != nil {
		return nil, err
	}
	if old != nil && b.pods.isPrepared(old) {
		if there, err := hasLink(old.Link); err == nil && there {
			return b.assign(ctx, old, e)
		}
	}
	if old != nil {
		if err := b.detach(old, false); err != nil {
			return nil, err
		}
	}
	r, err := b.reserve(ctx, e, old, room)
	if err != nil {
		return nil, err
	}
	addrs, err := b.attach(ctx, r, ns, room)
	if err != nil {
		if undo := b.detach(r, old == nil); undo != nil {
			b.log.Error("what is left of a failed network set-up goes at the next try", "pod", r.Pod, "error", undo)
		}
		return nil, err
	}
	return addrs, nil
}

// reserve puts the endpoint on record in memory, with addresses and host ports that no other has.
func (b *Bridge) reserve(ctx context.Context, e Endpoint, old *record,
	room func(context.Context) bool) (*record, error) {
	r, err := b.pods.reserve(e, old)
	for errors.Is(err, errdefs.ErrResourceExhausted) && room(ctx) || b.vacate(err) {
		r, err = b.pods.reserve(e, old)
	}
	return r, err
}

// makeRoom frees the address and the port of an endpoint that is on its way out, or that waits for a pod: they are as
// good as free. made is false where there is none.
func (b *Bridge) makeRoom(ctx context.Context) (made bool) {
	if freed, _ := b.dropPrepared(1); freed > 0 { // what could not be removed is tried again
		return true
	}
	waited, err := b.pods.awaitLeaving(ctx, 1)
	return err == nil && waited
}

func (b *Bridge) attach(ctx context.Context, r *record, ns *os.File,
	room func(context.Context) bool) ([]netip.Addr, error) {
	if err := checkListeners(r.hostPorts); err != nil {
		return nil, err
	}
	if err := b.pods.save(r); err != nil {
		return nil, fmt.Errorf("record of the pod's network: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	addrs, err := b.connect(ctx, r, ns, room)
	if err != nil {
		return nil, err
	}
	if len(r.hostPorts) == 0 {
		return addrs, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := b.ports.open(r); err != nil {
		return nil, err
	}
	b.forgetFlows(r, false)
	return addrs, nil
}

// maxPorts is how many ports a bridge can have: BR_MAX_PORTS in the kernel, less the number that no port has.
const maxPorts = 1<<10 - 1

// connect makes the pod's interface. Where the bridge went away, it is made again.
func (b *Bridge) connect(ctx context.Context, r *record, ns *os.File,
	room func(context.Context) bool) ([]netip.Addr, error) {
	b.segment.Lock()
	v := veth{name: r.Link, alias: r.ID, mac: podMAC(r.Addresses[0]), mtu: b.segment.mtu, master: b.segment.index,
		ipv6: b.segment.ipv6}
	b.segment.Unlock()
	err := v.create(ns)
	if errors.Is(err, os.ErrExist) {
		// The interface is left from an earlier attempt of the same pod, because the pod's ID is in the name.
		if err := removeLink(v.name); err != nil {
			return nil, err
		}
		err = v.create(ns)
	}
	if errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("network namespace %s has an interface %s already: %w", ns.Name(), Interface,
			errdefs.ErrFailedPrecondition)
	}
	for errors.Is(err, unix.EXFULL) && room(ctx) {
		err = v.create(ns)
	}
	if errors.Is(err, unix.EXFULL) {
		return nil, fmt.Errorf("bridge %s has no port left: it has %d, as many as Linux gives a bridge (more pods than that "+
			"need CNI plugins, docs/configuration.md): %w", b.cfg.Name, maxPorts, errdefs.ErrResourceExhausted)
	}
	if err == nil {
		err = v.enslave()
	}
	if err != nil {
		if _, fixed := b.segment.repair(ctx); fixed != nil {
			return nil, fmt.Errorf("make interface %s: %w", v.name, errors.Join(err, fixed))
		}
		b.segment.Lock()
		v.master = b.segment.index
		b.segment.Unlock()
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
	prefixes, gateways := b.pods.prefixes(r)
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

// Detach removes an endpoint: its interface, its rules and its record. It is idempotent, and does not need the network
// namespace.
//
// The endpoint's host ports are free when Detach returns. The interface of an endpoint without host ports may be
// removed in the background. If that fails, it is tried again, at the latest by the next Reconcile.
func (b *Bridge) Detach(_ context.Context, id string) error {
	defer b.ids.Lock(id)()
	b.pods.mu.Lock()
	r := b.pods.records[id]
	if r == nil || r.leaving != nil {
		b.pods.mu.Unlock()
		return nil
	}
	// The namespace of a prepared one may stay, and be given another interface.
	background := b.cfg.Background && !b.pods.closed && len(r.hostPorts) == 0 && !r.prepared
	unlinked := make(chan struct{})
	if background {
		r.leaving, r.unlinked = make(chan struct{}), unlinked
		b.done.Add(1)
	}
	b.pods.mu.Unlock()
	if !background {
		return b.detach(r, true)
	}
	go func() {
		defer b.done.Done()
		b.retire(r, unlinked)
	}()
	return nil
}

// endWait is how long the network namespace of a pod may take to end after the pod was detached.
const endWait = time.Second

// retire detaches an endpoint in the background. When the namespace of a pod ends, the kernel removes the interfaces in
// it, and with them those on the bridge, for all namespaces that have ended meanwhile at once. It holds the lock of all
// interfaces once for them, and a pod that starts waits for that lock. So it is left to the kernel if that comes soon.
func (b *Bridge) retire(r *record, unlinked <-chan struct{}) {
	select {
	case <-unlinked:
	case <-time.After(b.endWait): // somebody else has the namespace open
	case <-b.closing:
	}
	err := b.detach(r, true)
	b.pods.mu.Lock()
	done := r.leaving
	if err != nil {
		r.leaving = nil // the next Attach or Detach of the endpoint tries again
		b.pods.stuck[r.ID] = true
	}
	b.pods.mu.Unlock()
	close(done)
	if err != nil {
		b.log.Error("the interface of a pod that is gone could not be removed; it is tried again", "pod", r.Pod, "error", err)
	}
}

// retry detaches again what could not be detached in the background.
func (b *Bridge) retry(ctx context.Context) {
	b.pods.mu.Lock()
	stuck := slices.Collect(maps.Keys(b.pods.stuck))
	clear(b.pods.stuck)
	b.pods.mu.Unlock()
	for _, id := range stuck {
		if err := b.Detach(ctx, id); err != nil {
			b.log.Error("remove what is left of a pod's network", "pod_id", id, "error", err)
		}
	}
}

// detach removes an endpoint's interface and host ports from the kernel and, if forget is set, then its record.
func (b *Bridge) detach(r *record, forget bool) error {
	// Both removals wait for an RCU grace period of 10 ms or more. Side by side, they wait for the same one.
	ports := make(chan error, 1)
	go func() {
		if len(r.hostPorts) == 0 {
			ports <- nil
			return
		}
		err := b.ports.close(r)
		b.forgetFlows(r, true)
		ports <- err
	}()
	if err := errors.Join(removeLink(r.Link), <-ports); err != nil {
		return err
	}
	if !forget {
		return nil
	}
	if err := b.pods.forget(r); err != nil {
		return err
	}
	b.pods.mu.Lock()
	delete(b.pods.records, r.ID)
	for _, p := range b.pods.pools {
		for _, addr := range r.Addresses {
			delete(p.store.owners, addr)
		}
	}
	b.pods.mu.Unlock()
	b.wake()
	return nil
}

// Has tells whether an endpoint is on record.
func (b *Bridge) Has(id string) bool {
	b.pods.mu.Lock()
	defer b.pods.mu.Unlock()
	return b.pods.records[id] != nil
}

// SetCIDRs changes the ranges that addresses come from. ErrFailedPrecondition: the configuration names others, or
// endpoints have addresses of the ones that are in use.
func (b *Bridge) SetCIDRs(ctx context.Context, cidrs []netip.Prefix) error {
	if err := CheckCIDRs(cidrs); err != nil {
		return err
	}
	if _, err := b.pods.awaitLeaving(ctx, math.MaxInt); err != nil {
		return err
	}
	b.segment.Lock()
	defer b.segment.Unlock()
	b.pods.mu.Lock()
	configured, users := b.cfg.CIDRs, b.pods.users()
	var now []netip.Prefix
	for _, p := range b.pods.pools {
		now = append(now, p.prefix)
	}
	b.pods.mu.Unlock()
	v6, err := canHaveIPv6(b.cfg.Name)
	if err != nil {
		return err
	}
	same := slices.Equal(now, cidrs)
	if v4 := ofIPv4(cidrs); !v6 && len(v4) > 0 { // pods get no other addresses
		same = slices.Equal(ofIPv4(now), v4)
	}
	switch {
	case len(configured) > 0 && !slices.Equal(configured, cidrs):
		return fmt.Errorf("pod CIDR %s: the configuration names %s: %w", cidrText(cidrs), cidrText(configured),
			errdefs.ErrFailedPrecondition)
	case len(configured) > 0:
		return b.saveNode(cidrs)
	case users > 0 && !same:
		return fmt.Errorf("pod CIDR %s: %d pods have addresses of %s: %w", cidrText(cidrs), users, cidrText(now),
			errdefs.ErrFailedPrecondition)
	}
	if !same {
		if _, err := b.dropPrepared(math.MaxInt); err != nil {
			return err
		}
	}
	if err := b.saveNode(cidrs); err != nil {
		return err
	}
	if users > 0 || same {
		return nil
	}
	b.segment.setProblem(nil)    // of the old range
	return b.segment.dismantle() // the next endpoint builds it in the new range
}

// SaveCIDRs records the ranges as those of the node, whether or not the bridge can use them now: NodeCIDRs returns
// them, also after a restart, and the bridge takes them as SetCIDRs has it when it is built the next time.
func (b *Bridge) SaveCIDRs(cidrs []netip.Prefix) error {
	b.segment.Lock()
	defer b.segment.Unlock()
	return b.saveNode(cidrs)
}

// saveNode records the node's ranges. The caller holds segment.
func (b *Bridge) saveNode(cidrs []netip.Prefix) error {
	if err := b.pods.saveNode(cidrs); err != nil {
		return fmt.Errorf("record of the node's pod CIDR: %w", err)
	}
	b.pods.mu.Lock()
	defer b.pods.mu.Unlock()
	b.pods.node = cidrs
	return nil
}

// NodeCIDRs returns the ranges of the last SetCIDRs that succeeded, or SaveCIDRs.
func (b *Bridge) NodeCIDRs() []netip.Prefix {
	b.pods.mu.Lock()
	defer b.pods.mu.Unlock()
	return b.pods.node
}

// Health returns an error if endpoints cannot be attached, as far as the bridge knows.
func (b *Bridge) Health() error {
	if problem := b.segment.why(); problem != nil {
		return problem
	}
	if err := b.segment.foresee(); err != nil {
		return err
	}
	_, err := inetTables()
	return err
}

// Warning says what keeps pods from working although endpoints can be attached: a firewall of the node's that stops
// their packets. Empty: nothing that is known.
func (b *Bridge) Warning() string { return b.firewall.warning() }

// Purge removes the bridge, the nftables table and the record of the range at once. ErrFailedPrecondition: there are
// endpoints.
func (b *Bridge) Purge() error {
	if _, err := b.pods.awaitLeaving(context.Background(), math.MaxInt); err != nil {
		return err
	}
	b.segment.Lock()
	defer b.segment.Unlock()
	b.pods.mu.Lock()
	users := b.pods.users()
	b.pods.mu.Unlock()
	if users > 0 {
		return fmt.Errorf("bridge %s has %d pods: %w", b.cfg.Name, users, errdefs.ErrFailedPrecondition)
	}
	if _, err := b.dropPrepared(math.MaxInt); err != nil {
		return err
	}
	b.segment.setProblem(nil)
	return b.segment.dismantle()
}

// Close ends the watch. Endpoints keep their network. A bridge without endpoints is removed.
func (b *Bridge) Close() error {
	b.pods.mu.Lock()
	b.pods.closed = true
	b.pods.mu.Unlock()
	b.stop()
	b.done.Wait()
	defer b.ports.tables.Close()
	b.segment.Lock()
	defer b.segment.Unlock()
	b.pods.mu.Lock()
	users := b.pods.users()
	b.pods.mu.Unlock()
	_, err := b.dropPrepared(math.MaxInt)
	if err != nil || users > 0 || !b.segment.up && !b.segment.remains {
		return errors.Join(err, b.pods.dropUnused())
	}
	return b.segment.dismantle()
}
