package index

import (
	"time"

	"berth/internal/model"
)

// A kubelet takes the attempt with the latest creation time for the one that counts, of a pod and of a container in it.
// The wall clock may be set back between two attempts, as on a machine without a clock of its own that has booted and
// not yet asked for the time: the pod that runs would pass for the old one, and the kubelet would make it anew under a
// name that is taken. So an attempt is created after those before it, if only by a nanosecond.

// sandboxCreated is the creation time of a new pod. The caller holds x.mu.
func (x *Index) sandboxCreated(of model.SandboxMetadata) time.Time {
	return x.createdAfter(time.Now(), func(pass func(time.Time)) {
		for _, other := range x.pods {
			if st := other.Status(); sameSandbox(st.Config.Metadata, of) {
				pass(st.CreatedAt)
			}
		}
	})
}

// containerCreated is that of a new container of the pod s. The caller holds x.mu.
func (x *Index) containerCreated(s *Sandbox, name string) time.Time {
	of := s.Status().Config.Metadata
	return x.createdAfter(time.Now(), func(pass func(time.Time)) {
		for _, other := range x.containers {
			st := other.Status()
			if st.Config.Metadata.Name == name && sameSandbox(other.Sandbox.Status().Config.Metadata, of) {
				pass(st.CreatedAt)
			}
		}
	})
}

// sameSandbox tells whether two sandboxes are attempts of one pod.
func sameSandbox(a, b model.SandboxMetadata) bool {
	a.Attempt, b.Attempt = 0, 0
	return a == b
}

// createdAfter is now, or, where the clock was set back, after the times that earlier passes on. Only then are all pods
// or containers looked through. The time has no reading of the monotonic clock, as none has that was read from a
// record: two that have one are compared by that alone, and the order would be another before a restart of berthd and
// after it.
func (x *Index) createdAfter(now time.Time, earlier func(pass func(time.Time))) time.Time {
	at := now.Round(0)
	if !at.After(x.lastCreated) {
		earlier(func(other time.Time) {
			if !at.After(other) {
				at = other.Add(time.Nanosecond)
			}
		})
	}
	x.noteCreated(at)
	return at
}

// noteCreated keeps the latest creation time of all. The caller holds x.mu, or is New.
func (x *Index) noteCreated(at time.Time) {
	if at.After(x.lastCreated) {
		x.lastCreated = at
	}
}
