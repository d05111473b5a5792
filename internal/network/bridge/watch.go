package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/namespace"
)

// enter makes sure that bridge and table are there, and that they stay until leave.
func (b *Bridge) enter(ctx context.Context) error {
	b.segment.Lock()
	defer b.segment.Unlock()
	b.pods.mu.Lock()
	if b.pods.closed {
		b.pods.mu.Unlock()
		return fmt.Errorf("bridge %s is closed: %w", b.cfg.Name, errdefs.ErrUnavailable)
	}
	b.pods.entering++
	b.pods.mu.Unlock()
	if err := b.segment.build(ctx); err != nil {
		b.leave()
		return err
	}
	return nil
}

// Expect says that an endpoint comes soon. Where the bridge is not there yet, it is made in the background meanwhile,
// and goes again if no endpoint comes. An error is that of the Attach that follows.
func (b *Bridge) Expect(ctx context.Context) {
	if b.segment.TryLock() { // who has it may be making the bridge, or removing it
		up := b.segment.up
		b.segment.Unlock()
		if up {
			return
		}
	}
	b.pods.mu.Lock()
	defer b.pods.mu.Unlock()
	if b.pods.closed {
		return
	}
	b.done.Go(func() {
		if b.enter(ctx) == nil {
			b.leave()
		}
	})
}

func (b *Bridge) leave() {
	b.pods.mu.Lock()
	b.pods.entering--
	b.pods.mu.Unlock()
	b.wake()
}

// wake tells the watch that the last endpoint may have gone.
func (b *Bridge) wake() {
	b.pods.mu.Lock()
	idle := b.pods.users() == 0
	if idle {
		b.pods.idle = time.Now()
	}
	b.pods.mu.Unlock()
	if !idle {
		return
	}
	select {
	case b.ending <- struct{}{}:
	default:
	}
}

// watch removes bridge and table some time after the last endpoint went, and repairs it where somebody else removed
// it: flushed the ruleset of the node, say, or restarted a network service that removes interfaces it does not know.
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
				soon = time.After(quietTime)
			}
		case <-soon:
			soon = nil
			b.check(ctx)
		case <-check.C:
			b.check(ctx)
			b.retry(ctx)
			b.followMTU()
			b.lookAtFirewall()
			b.pods.mu.Lock()
			over := time.Since(b.pods.idle) > b.cfg.Linger
			b.pods.mu.Unlock()
			if over {
				b.expire() // what could not be removed when it was time
			}
		}
	}
}

func (b *Bridge) expire() {
	b.segment.Lock()
	defer b.segment.Unlock()
	b.pods.mu.Lock()
	idle := b.pods.users() == 0
	b.pods.mu.Unlock()
	if !idle || !b.segment.up && !b.segment.remains {
		return
	}
	if _, err := b.dropPrepared(math.MaxInt); err != nil {
		b.log.Error("the interface that waits for a pod could not be removed", "bridge", b.cfg.Name, "error", err)
		return
	}
	if err := b.segment.dismantle(); err != nil {
		b.log.Error("the bridge of no pod could not be removed", "bridge", b.cfg.Name, "error", err)
	}
}

// check looks whether all is in place, and repairs what is not. What has kept endpoints out is tried again, even where
// there are none: while the node's network is not ready, nobody asks for another.
func (b *Bridge) check(ctx context.Context) {
	before := b.segment.why()
	b.segment.Lock()
	intact, err := b.segment.intact()
	b.segment.Unlock()
	if err != nil || !intact || before != nil {
		if before == nil {
			b.log.Warn("the pods' network was changed from outside; repairing it", "bridge", b.cfg.Name)
		}
		if _, err := b.segment.repair(ctx); err != nil {
			if before == nil || before.Error() != err.Error() {
				b.log.Error("the pods' network could not be repaired", "bridge", b.cfg.Name, "error", err)
			}
			return
		}
		if before != nil {
			b.log.Info("the pods' network is ready again", "bridge", b.cfg.Name, "error", before)
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

// followMTU follows the MTU of the node's default route. The endpoints that wait for pods have the former one, and go.
func (b *Bridge) followMTU() {
	changed, err := b.segment.followMTU()
	if err == nil && changed {
		_, err = b.dropPrepared(math.MaxInt)
	}
	if err != nil {
		b.log.Warn("pods may get a former MTU", "bridge", b.cfg.Name, "error", err)
	}
}

// lost are the endpoints without an interface, or with one that was not made to the end or is no port of the bridge.
// Some may be on their way in or out. One that has lost it again and again, as a pod may that removes it itself, has to
// wait.
func (b *Bridge) lost() (list []*record, err error) {
	b.pods.mu.Lock()
	records := slices.Collect(maps.Values(b.pods.records))
	b.pods.mu.Unlock()
	if len(records) == 0 {
		return nil, nil
	}
	b.segment.Lock()
	bridge := b.segment.index
	b.segment.Unlock()
	ports, err := whole(bridgePorts)
	if err != nil {
		return nil, err
	}
	joined := map[string]bool{}
	for _, p := range ports {
		if p.MasterIndex == bridge {
			joined[p.Name] = true
		}
	}
	b.pods.mu.Lock()
	defer b.pods.mu.Unlock()
	for _, r := range records { // those that come after the list of ports are not in it
		if (!joined[r.Link] || r.Restoring) && b.pods.records[r.ID] == r && r.leaving == nil && !b.pods.stuck[r.ID] &&
			time.Since(r.restored) >= checkInterval {
			list = append(list, r)
		}
	}
	return list, nil
}

// Reconcile removes the resources of endpoints that are gone, and repairs live endpoints and their records. live has
// the endpoints by their IDs. If the network namespace of one does not exist (after a reboot), the endpoint only keeps
// its addresses. live must name every endpoint that is attached, or being attached, at the time of the call. lost are
// the endpoints whose records are gone and cannot be made again: they have no network any more.
func (b *Bridge) Reconcile(ctx context.Context, live map[string]Endpoint) (lost map[string]error, err error) {
	lost = b.pods.rebuild(live)
	return lost, b.reconcile(ctx, live)
}

func (b *Bridge) reconcile(ctx context.Context, live map[string]Endpoint) error {
	b.pods.mu.Lock()
	var dead, alive []*record
	unfinished := map[*record]bool{}
	for id, r := range b.pods.records {
		if e, ok := live[id]; ok {
			r.Pod = cmp.Or(r.Pod, e.Pod) // one that was prepared was written without
			r.sysctls = e.Sysctls
			unfinished[r] = r.Restoring
			alive = append(alive, r)
		} else {
			dead = append(dead, r)
		}
	}
	b.pods.mu.Unlock()
	var errs []error
	for _, r := range dead {
		if err := b.Detach(ctx, r.ID); err != nil {
			errs = append(errs, fmt.Errorf("pod %s (%s): %w", r.Pod, r.ID, err))
		}
	}
	if _, err := b.pods.awaitLeaving(ctx, math.MaxInt); err != nil {
		return errors.Join(append(errs, err)...)
	}
	if err := b.pods.removeSpoilt(); err != nil {
		errs = append(errs, err)
	}
	if len(alive) == 0 {
		errs = append(errs, b.removeStrays())
		b.segment.Lock()
		b.pods.mu.Lock()
		users := len(b.pods.records) + b.pods.entering
		b.pods.mu.Unlock()
		if users == 0 {
			errs = append(errs, b.segment.dismantle())
		}
		b.segment.Unlock()
		return errors.Join(errs...)
	}
	// One list for all: with a thousand pods, one takes 30 ms.
	have, err := b.segment.repair(ctx)
	if err != nil {
		return errors.Join(append(errs, b.removeStrays(), err)...)
	}
	errs = append(errs, b.removeStraysOf(have))
	for _, r := range alive {
		if _, ok := have[r.Link]; ok && !unfinished[r] {
			continue
		}
		if err := b.restore(ctx, r, live[r.ID].NetNS); err != nil {
			errs = append(errs, fmt.Errorf("pod %s (%s): %w", r.Pod, r.ID, err))
		}
	}
	return errors.Join(errs...)
}

// removeStrays removes veths of no record.
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
	return b.removeStraysOf(have)
}

// removeStraysOf removes those of the veths that are of no record. Records come before veths and go after them, so none
// is of an endpoint.
func (b *Bridge) removeStraysOf(have map[string]int) error {
	have = maps.Clone(have)
	b.pods.mu.Lock()
	for _, r := range b.pods.records {
		delete(have, r.Link)
	}
	b.pods.mu.Unlock()
	var errs []error
	for name := range have {
		errs = append(errs, removeLink(name))
	}
	return errors.Join(errs...)
}

// restore puts the interface of a live endpoint back on the bridge. If the interface is gone, or was not made to the
// end, and the namespace is there, it is made again.
func (b *Bridge) restore(ctx context.Context, r *record, path string) error {
	defer b.ids.Lock(r.ID)()
	b.pods.mu.Lock()
	current := b.pods.records[r.ID]
	leaving, sysctls, restoring := r.leaving != nil, r.sysctls, r.Restoring
	b.pods.mu.Unlock()
	if current != r || leaving || path == "" {
		return nil
	}
	h, err := routes()
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(r.Link)
	if err != nil && !isNoLink(err) {
		return err
	}
	if err == nil && !restoring {
		return b.segment.rejoin(r, link.Attrs().MasterIndex)
	}
	if err := removeLink(r.Link); err != nil { // what there is of one that was cut off
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
	if err := b.pods.setRestoring(r, true); err != nil {
		b.log.Error("a pod's interface that is made again is not on record as unfinished", "pod", r.Pod, "error", err)
	}
	if _, err = b.connect(ctx, r, ns, b.makeRoom); err != nil {
		return err // the endpoint stays marked, and is tried again
	}
	if err := namespace.SetSysctls(path, sysctls); err != nil {
		b.log.Error("the pod's interface was made again, and lacks sysctls that the pod asks for", "pod", r.Pod, "error", err)
	}
	if err := b.pods.setRestoring(r, false); err != nil {
		b.log.Error("a pod's interface that was made again is on record as unfinished", "pod", r.Pod, "error", err)
	}
	return nil
}
