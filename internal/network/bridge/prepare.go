package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Prepare joins an endpoint that is no pod's yet: only its ID and its network namespace count. Attach gives it to the
// pod that has that ID, with its addresses. Until then it does not keep the bridge, and when it is in the way of a pod
// (there is no other address or port), or of a change of the range, it is removed; Attach then joins that pod like any
// other.
func (b *Bridge) Prepare(ctx context.Context, e Endpoint) error {
	noRoom := func(context.Context) bool { return false } // it takes no other's address or port
	if _, err := b.join(ctx, Endpoint{ID: e.ID, NetNS: e.NetNS}, noRoom); err != nil {
		return err
	}
	b.pods.mu.Lock()
	if r := b.pods.records[e.ID]; r != nil {
		r.prepared = true
	}
	b.pods.mu.Unlock()
	b.wake()
	return nil
}

// assign gives a prepared endpoint to a pod, all or nothing. Its record is only written again for host ports: the
// pod's name is in the pod's own record. The caller has locked the endpoint's ID.
func (b *Bridge) assign(ctx context.Context, r *record, e Endpoint) ([]netip.Addr, error) {
	ports, err := b.pods.assign(r, e)
	for b.vacate(err) {
		ports, err = b.pods.assign(r, e)
	}
	if err == nil && ports {
		err = b.openAssigned(ctx, r)
	}
	if err != nil {
		if undo := b.detach(r, true); undo != nil {
			b.log.Error("what is left of a failed network set-up goes at the next try", "pod", r.Pod, "error", undo)
		}
		return nil, err
	}
	return r.Addresses, nil
}

func (b *Bridge) openAssigned(ctx context.Context, r *record) error {
	if err := checkListeners(r.hostPorts); err != nil {
		return err
	}
	if err := b.pods.save(r); err != nil {
		return fmt.Errorf("record of the pod's network: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := b.ports.open(r); err != nil {
		return err
	}
	b.forgetFlows(r, false)
	return nil
}

// assign makes a prepared record that of a pod. ports says that the pod has host ports.
func (es *endpoints) assign(r *record, e Endpoint) (ports bool, err error) {
	es.mu.Lock()
	defer es.mu.Unlock()
	r.prepared, r.Pod, r.Ports, r.sysctls = false, e.Pod, e.Ports, e.Sysctls
	if r.hostPorts, err = hostPorts(e.Ports, r.Addresses); err == nil {
		err = es.checkConflicts(r)
	}
	if err != nil {
		r.hostPorts = nil // not its own
	}
	return len(r.hostPorts) > 0, err
}

func (es *endpoints) isPrepared(r *record) bool {
	es.mu.Lock()
	defer es.mu.Unlock()
	return r.prepared
}

// users are the endpoints of pods, and those that are being attached. The caller holds mu.
func (es *endpoints) users() int {
	n := es.entering
	for _, r := range es.records {
		if !r.prepared {
			n++
		}
	}
	return n
}

// dropPrepared removes at most count of the endpoints that are no pod's yet. One that is in use, or that cannot be
// removed, does not count.
func (b *Bridge) dropPrepared(count int) (dropped int, err error) {
	b.pods.mu.Lock()
	var ids []string
	for id, r := range b.pods.records {
		if r.prepared {
			ids = append(ids, id)
		}
	}
	b.pods.mu.Unlock()
	var errs []error
	for _, id := range ids {
		if dropped == count {
			break
		}
		gone, err := b.dropOne(id)
		errs = append(errs, err)
		if gone {
			dropped++
		}
	}
	return dropped, errors.Join(errs...)
}

// dropOne removes an endpoint if it is still no pod's.
func (b *Bridge) dropOne(id string) (gone bool, err error) {
	release, ok := b.ids.TryLock(id)
	if !ok {
		return false, nil // a pod is being given it
	}
	defer release()
	b.pods.mu.Lock()
	r := b.pods.records[id]
	b.pods.mu.Unlock()
	if r == nil || !b.pods.isPrepared(r) {
		return false, nil
	}
	err = b.detach(r, true)
	return err == nil, err
}
