package bridge

import (
	"errors"

	"github.com/containerd/errdefs"
)

// portTaken is the error of a host port that another endpoint has.
type portTaken struct {
	holder string // its ID
	error
}

func (e *portTaken) Unwrap() error { return e.error }

// vacate takes the host ports from an endpoint that is in another one's way, if its network namespace is gone, as after
// a reboot: nobody answers at them. The endpoint keeps its addresses, which it may be attached with again. freed is
// false where the error is another, or where the endpoint needs its ports or somebody is busy with it.
func (b *Bridge) vacate(err error) (freed bool) {
	var taken *portTaken
	if !errors.As(err, &taken) {
		return false
	}
	release, ok := b.ids.TryLock(taken.holder)
	if !ok {
		return false
	}
	defer release()
	b.pods.mu.Lock()
	r := b.pods.records[taken.holder]
	leaving := r != nil && r.leaving != nil
	b.pods.mu.Unlock()
	if r == nil {
		return true
	}
	ns, err := openNamespace(r.NetNS)
	if err == nil {
		ns.Close()
	}
	if leaving || !errdefs.IsNotFound(err) {
		return false
	}
	err = b.ports.close(r)
	next := &record{ID: r.ID, Pod: r.Pod, NetNS: r.NetNS, Link: r.Link, Addresses: r.Addresses, Created: r.Created}
	if err == nil {
		err = b.pods.save(next)
	}
	if err != nil {
		b.log.Error("take the host ports of a pod without a network from it", "pod_id", r.ID, "pod", r.Pod, "error", err)
		return false
	}
	b.pods.mu.Lock()
	b.pods.records[r.ID] = next
	b.pods.mu.Unlock()
	b.log.Info("a pod without a network has lost its host ports to another pod", "pod_id", r.ID, "pod", r.Pod)
	return true
}
