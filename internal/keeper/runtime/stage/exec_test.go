package stage

import (
	"context"
	"errors"
	"testing"
	"time"

	"berth/internal/keeper/runtime"
	"berth/internal/keeper/stage"
)

// guarded is a container whose guard another operation has locked.
type guarded struct {
	runtime.Container
	guard  *runtime.Guard
	thawed chan struct{}
	before int // how often it is looked at before a checkpoint freezes it
}

func (g *guarded) Guard() *runtime.Guard { return g.guard }

func (g *guarded) Thawed() <-chan struct{} {
	if g.before > 0 {
		g.before--
		return nil
	}
	return g.thawed
}

// TestAnExecEndsAtItsTimeWhileTheGuardIsLocked: CRIU has the guard for minutes where there is much memory to write.
// Seen to fail where an exec waits for the guard without its context: it ends with the operation that has the guard.
func TestAnExecEndsAtItsTimeWhileTheGuardIsLocked(t *testing.T) {
	for what, c := range map[string]*guarded{
		"CRIU writes":                     {thawed: make(chan struct{})},
		"the checkpoint begins meanwhile": {thawed: make(chan struct{}), before: 1},
		"an update":                       {},
	} {
		t.Run(what, func(t *testing.T) {
			c.guard = runtime.NewGuard()
			if err := c.guard.Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer c.guard.Unlock()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := (&Engine{}).enter(ctx, c, nil, nil, nil, nil, nil, nil)
				ended <- err
			}()
			select {
			case err := <-ended:
				if !errors.Is(err, stage.ErrInterrupted) || ctx.Err() == nil {
					t.Errorf("it ended with %v, and its context with %v", err, ctx.Err())
				}
			case <-time.After(time.Minute):
				t.Error("it waits")
			}
		})
	}
}
