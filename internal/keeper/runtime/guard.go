package runtime

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// Guard is the lock between execs that enter a container and operations that must not run at that time: a pause, an
// update, a checkpoint, the removal. Any number of execs hold it together, by Enter. Lock is for one operation alone.
//
// An exec may hold it for ever, where its working directory is on a file system that does not answer, and a checkpoint
// for minutes. So nobody waits for it without a context. An operation that waits makes later execs wait behind it.
type Guard struct {
	sem      *semaphore.Weighted
	entering atomic.Int32 // execs that hold it
}

// lockWait is how long an operation waits for execs that are being set up. Other execs wait as long behind it, so it is
// shorter than the deadlines of kubelets, whose users then read what the operation has waited for.
const lockWait = 10 * time.Second

// guardAll is the weight of all that can hold a guard together.
const guardAll = math.MaxInt32

// NewGuard returns a guard that nobody holds.
func NewGuard() *Guard { return &Guard{sem: semaphore.NewWeighted(guardAll)} }

// Enter takes the guard for an exec. The error is that of the context.
func (g *Guard) Enter(ctx context.Context) error {
	if err := g.sem.Acquire(ctx, 1); err != nil {
		return err
	}
	g.entering.Add(1)
	return nil
}

// Leave gives back what Enter has taken.
func (g *Guard) Leave() {
	g.entering.Add(-1)
	g.sem.Release(1)
}

// Lock takes the guard for one operation alone. It waits for another operation until the context ends, and for execs
// that are being set up lockWait at most: the error is context.DeadlineExceeded then, and says what it has waited for.
// A guard that nobody holds is taken also if the context has ended.
func (g *Guard) Lock(ctx context.Context) error {
	if g.sem.TryAcquire(guardAll) {
		return nil
	}
	for {
		limited, cancel := context.WithTimeout(ctx, lockWait)
		err := g.sem.Acquire(limited, guardAll)
		cancel()
		switch {
		case err == nil:
			return nil
		case g.entering.Load() > 0:
			return fmt.Errorf("an exec is being set up in the container, and does not get further: %w", err)
		case ctx.Err() != nil:
			return fmt.Errorf("another operation on the container does not end: %w", ctx.Err())
		}
	}
}

// Unlock gives back what Lock has taken.
func (g *Guard) Unlock() { g.sem.Release(guardAll) }

// WithoutCheckpoint takes the guard of a container that is not frozen for a checkpoint. A checkpoint that is under way
// is waited for; its deadline may be minutes away, so the end of the context ends the wait. take is Enter or Lock, and
// give gives back what take has taken.
//
// CRIU has the guard while it writes. A checkpoint is known before it takes the guard, and is looked for again with the
// guard: an exec that waits for the guard itself would make all operations wait behind it.
func WithoutCheckpoint(ctx context.Context, c Container, take func(context.Context) error, give func()) error {
	for {
		thawed := c.Thawed()
		if thawed == nil {
			if err := take(ctx); err != nil {
				return err
			}
			if thawed = c.Thawed(); thawed == nil {
				return nil
			}
			give() // the checkpoint has begun meanwhile
		}
		select {
		case <-thawed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
