// Package operation lets one operation at a time work on a pod or a container.
package operation

import (
	"context"
	"fmt"

	"golang.org/x/sync/semaphore"
)

// all is the weight of an operation that shuts out all others.
const all = 1 << 30

// Lock orders the operations on one object. A caller that waits for it gives up at its own deadline, so a stuck
// operation does not pile up calls that nobody waits for any more. Callers get the lock in the order in which they
// came.
//
// A container's operations share the lock of its pod, and take it before the container's own.
type Lock struct{ sem *semaphore.Weighted }

// New returns a lock that nobody holds.
func New() Lock { return Lock{semaphore.NewWeighted(all)} }

// Taken returns a lock that the caller holds alone, for an object that is being made, and the function that releases
// it.
func Taken() (l Lock, release func()) {
	l = New()
	l.sem.TryAcquire(all)
	return l, func() { l.sem.Release(all) }
}

// Exclusive waits until no other operation holds the object. release is to be called once. The error is that ctx has
// ended first; act says what was to be done, as in "stop container 0123456789ab".
func (l Lock) Exclusive(ctx context.Context, act string) (release func(), err error) {
	return l.hold(ctx, all, act, "it")
}

// Shared waits until no operation holds the object alone. object is what act calls it: "it", or "its pod" where act
// is of a container.
func (l Lock) Shared(ctx context.Context, act, object string) (release func(), err error) {
	return l.hold(ctx, 1, act, object)
}

// TryShared is Shared that does not wait. It returns nil where an operation holds the object alone.
func (l Lock) TryShared() (release func()) {
	if !l.sem.TryAcquire(1) {
		return nil
	}
	return func() { l.sem.Release(1) }
}

func (l Lock) hold(ctx context.Context, weight int64, act, object string) (release func(), err error) {
	if err := l.sem.Acquire(ctx, weight); err != nil {
		return nil, fmt.Errorf("%s: another operation holds %s: %w", act, object, err)
	}
	return func() { l.sem.Release(weight) }, nil
}
