package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// endpoints has the pods on the bridge and the ranges of their addresses, in memory. The lock is held only for short
// times, and never during calls to the kernel, except to read the addresses of a lost record.
type endpoints struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex // guards what follows, and the fields of records that say so
	records  map[string]*record
	stuck    map[string]bool // endpoints that could not be detached in the background
	entering int             // endpoints that are being attached and may have no record yet
	pools    []*pool         // of addresses, in the order of the configured ranges; empty: not chosen yet
	noIPv6   bool            // the bridge can have no addresses of IPv6
	node     []netip.Prefix  // the ranges of the last SetCIDRs
	former   []netip.Prefix  // the ranges of the endpoints of an earlier process
	idle     time.Time       // since when there is no endpoint
	closed   bool
	unused   []string // files of records that are gone, for the next ones; at most maxUnused and a few
	// lastUnused is in the name of the file that was last put there: no two have one name.
	lastUnused int
}

func (es *endpoints) load(dir string) error {
	records, err := loadRecords(dir, es.log)
	if err != nil {
		return err
	}
	if err := es.loadNode(); err != nil {
		return err
	}
	var n network
	known, spoilt, err := readFile(filepath.Join(es.cfg.StateDir, networkFile), &n)
	if err != nil {
		return err
	}
	if spoilt != nil {
		es.log.Warn("the record of the pods' range is spoilt", "error", spoilt)
	}
	slices.SortFunc(records, func(a, c *record) int { return a.Created.Compare(c.Created) })
	for _, r := range records {
		es.records[r.ID] = r
	}
	if known && spoilt == nil && CheckCIDRs(n.CIDRs) == nil {
		es.former = n.CIDRs
	}
	if len(records) == 0 || len(es.former) == 0 {
		return nil
	}
	if want := es.wantedCIDRs(); len(want) > 0 && !slices.Equal(want, es.former) {
		es.log.Warn("pods live in another range than is configured; it changes when none is left",
			"range", cidrText(es.former), "configured", cidrText(want))
	}
	return es.setPools(es.former)
}

// loadNode reads the ranges of the last SetCIDRs, from the second file if the first is damaged or missing.
func (es *endpoints) loadNode() error {
	for _, name := range []string{nodeFile, nodeSpare} {
		var n network
		path := filepath.Join(es.cfg.StateDir, name)
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
			es.log.Warn("a record of the node's range is spoilt", "file", path, "error", spoilt)
		} else if len(n.CIDRs) > 0 {
			es.node = n.CIDRs
			return es.saveNode(n.CIDRs)
		}
	}
	return nil
}

// saveNode writes both records of the node's range.
func (es *endpoints) saveNode(cidrs []netip.Prefix) error {
	n := network{CIDRs: cidrs}
	return errors.Join(writeFile(filepath.Join(es.cfg.StateDir, nodeFile), n),
		writeFile(filepath.Join(es.cfg.StateDir, nodeSpare), n))
}

// wantedCIDRs returns the configured ranges or, if there are none, those of the last SetCIDRs. Empty: the bridge
// chooses.
func (es *endpoints) wantedCIDRs() []netip.Prefix {
	if len(es.cfg.CIDRs) > 0 {
		return es.cfg.CIDRs
	}
	return es.node
}

// setPools makes the pools of addresses for ranges, and takes the addresses of the records out of them.
func (es *endpoints) setPools(cidrs []netip.Prefix) error {
	var pools []*pool
	for _, c := range cidrs {
		p, err := newPool(c)
		if err != nil {
			return err
		}
		pools = append(pools, p)
	}
	es.pools = pools
	records := slices.SortedFunc(maps.Values(es.records), func(a, c *record) int { return a.Created.Compare(c.Created) })
	for _, r := range records {
		es.claim(r)
	}
	return nil
}

// usable are the pools that endpoints get addresses of: all, or, where the node's IPv6 was switched off after the
// ranges were chosen, those of IPv4. The caller holds mu.
func (es *endpoints) usable() []*pool {
	if !es.noIPv6 {
		return es.pools
	}
	v4 := slices.DeleteFunc(slices.Clone(es.pools), func(p *pool) bool { return p.gateway.Is6() })
	if len(v4) == 0 {
		return es.pools // so that the error of the kernel is told
	}
	return v4
}

// claim takes the addresses of a record out of the pools, and returns those that no pool has or that are taken. The
// caller holds mu, or nobody else has the bridge yet.
func (es *endpoints) claim(r *record) (others []netip.Addr) {
	for _, addr := range r.Addresses {
		if !slices.ContainsFunc(es.pools, func(p *pool) bool {
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

func (es *endpoints) prefixes(r *record) (prefixes []netip.Prefix, gateways []netip.Addr) {
	es.mu.Lock()
	defer es.mu.Unlock()
	for _, addr := range r.Addresses {
		for _, p := range es.usable() {
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
func (es *endpoints) reserve(e Endpoint, old *record) (*record, error) {
	es.mu.Lock()
	defer es.mu.Unlock()
	r := &record{
		ID: e.ID, Pod: e.Pod, NetNS: e.NetNS, Link: vethName(es.cfg.Name, e.ID), Ports: e.Ports, Created: time.Now().UTC(),
		sysctls: e.Sysctls,
	}
	for id, other := range es.records {
		if id != e.ID && other.Link == r.Link {
			return nil, fmt.Errorf("the name of the pod's interface is that of pod %s (%s): %w", other.Pod, id,
				errdefs.ErrFailedPrecondition)
		}
	}
	release := func() {
		if old != nil {
			return
		}
		for _, p := range es.pools {
			p.store.ReleaseByID(e.ID, Interface)
		}
	}
	for _, p := range es.usable() {
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
		err = es.checkConflicts(r)
	}
	if err != nil {
		release()
		return nil, err
	}
	for _, p := range es.pools {
		if old != nil && !slices.Contains(es.usable(), p) {
			p.store.ReleaseByID(e.ID, Interface) // an address that the old record had, and the new one does not have
		}
	}
	es.records[r.ID] = r
	return r, nil
}

func (es *endpoints) checkConflicts(r *record) error {
	if len(r.hostPorts) == 0 {
		return nil
	}
	index := make(portIndex, 2*len(r.hostPorts))
	for _, ours := range r.hostPorts {
		index.add(ours)
	}
	for id, other := range es.records {
		if id == r.ID {
			continue
		}
		for _, theirs := range other.hostPorts {
			if ours, taken := index.overlap(theirs); taken {
				return &portTaken{holder: id, error: fmt.Errorf("host port %s is taken by pod %s (%s): %w", ours,
					other.Pod, id, errdefs.ErrFailedPrecondition)}
			}
		}
	}
	return nil
}

func (es *endpoints) rules() ruleset {
	s := ruleset{bridge: es.cfg.Name, plain: es.cfg.NonMasquerade}
	for _, p := range es.usable() {
		s.cidrs = append(s.cidrs, p.prefix)
	}
	return s
}

// openedPorts are the host ports that belong in the nftables table. The caller holds the locks of portTable and of es.
func (es *endpoints) openedPorts() []hostPort {
	var all []hostPort
	for _, r := range es.records {
		if r.open {
			all = append(all, r.hostPorts...)
		}
	}
	return all
}

// lostLink says whether an interface that is gone, or no port any more, is of an endpoint that is not on its way out.
func (es *endpoints) lostLink(name string, gone bool) bool {
	es.mu.Lock()
	defer es.mu.Unlock()
	for _, r := range es.records {
		if r.Link == name {
			if gone {
				r.awaitNoMore()
			}
			return r.leaving == nil
		}
	}
	return false
}

// afterRemoval waits for a removal of the endpoint that is under way, and returns the endpoint's record, nil if there
// is none. The caller has locked the endpoint's ID.
func (es *endpoints) afterRemoval(ctx context.Context, id string) (*record, error) {
	for {
		es.mu.Lock()
		r := es.records[id]
		var leaving chan struct{}
		if r != nil {
			leaving = r.leaving
			r.awaitNoMore()
		}
		es.mu.Unlock()
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

// awaitLeaving waits for at most count of the endpoints that are being removed. waited is false if there are none.
func (es *endpoints) awaitLeaving(ctx context.Context, count int) (waited bool, err error) {
	es.mu.Lock()
	var leaving []chan struct{}
	for _, r := range es.records {
		if r.leaving != nil && len(leaving) < count {
			leaving = append(leaving, r.leaving)
			r.awaitNoMore()
		}
	}
	es.mu.Unlock()
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

// decide records the ranges that addresses come from, and makes the pools.
func (es *endpoints) decide(cidrs []netip.Prefix) error {
	if err := writeFile(filepath.Join(es.cfg.StateDir, networkFile), network{CIDRs: cidrs}); err != nil {
		return fmt.Errorf("record of the pods' range: %w", err)
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	return es.setPools(cidrs)
}
