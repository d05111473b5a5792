package runtime

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnExecThatIsSetUpForEverHoldsUpNobody: an operation on its container waits for some seconds, or as long as its
// context lasts, and says what it has waited for. Execs that wait behind it go on then. With a sync.RWMutex all of them
// waited for ever.
func TestAnExecThatIsSetUpForEverHoldsUpNobody(t *testing.T) {
	for what, limit := range map[string]time.Duration{"no deadline": 0, "a deadline": time.Second} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewGuard()
				if err := g.Enter(t.Context()); err != nil {
					t.Fatal(err)
				}
				ctx, wait := t.Context(), lockWait
				if limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, limit)
					defer cancel()
					wait = limit
				}
				began := time.Now()
				later := make(chan time.Duration, 1)
				time.AfterFunc(time.Millisecond, func() {
					if err := g.Enter(t.Context()); err != nil {
						t.Error(err)
					}
					later <- time.Since(began)
					g.Leave()
				})
				err := g.Lock(ctx)
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "exec is being set up") {
					t.Errorf("the operation: %v", err)
				}
				if took := time.Since(began); took != wait {
					t.Errorf("the operation waited for %v, not %v", took, wait)
				}
				if took := <-later; took != wait {
					t.Errorf("the exec behind it waited for %v, not %v", took, wait)
				}
				g.Leave()
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := g.Lock(ctx); err != nil {
					t.Errorf("a guard that nobody holds, with a context that has ended: %v", err)
				}
				g.Unlock()
			})
		})
	}
}

// TestAnOperationWaitsForAnother: a checkpoint may take minutes, and an update comes after it, as long as its caller
// waits. An exec with a time limit ends at it.
func TestAnOperationWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard()
		if err := g.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(3*lockWait, g.Unlock)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an exec with a time limit: %v", err)
		}
		if err := g.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "exec") {
			t.Errorf("an operation with a deadline: %v", err)
		}
		if err := g.Lock(t.Context()); err != nil {
			t.Errorf("an operation without a deadline: %v", err)
		}
	})
}
