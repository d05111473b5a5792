package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/keeper/record"
)

// undoWait is how long the start of a keeper waits for the starts that it undoes. An OCI runtime may hang as it is
// called for that, and the other containers of the node do not wait for it.
const undoWait = 2 * time.Second

// undo is the removal of a container whose start was cut off by the end of an earlier keeper.
type undo struct {
	c    *container
	done chan struct{} // closed when the first try has ended
	err  error         // of that try; valid once done is closed
}

// abort begins to remove a container whose start was cut off.
func (a *adoption) abort(c *container) {
	c.log.Info("start was cut off; container is removed")
	u := &undo{c: c, done: make(chan struct{})}
	a.mu.Lock()
	if a.undos == nil {
		a.aborted, a.undos = map[string]record.Container{}, map[string]*undo{}
	}
	a.aborted[c.id], a.undos[c.id] = c.record, u
	a.mu.Unlock()
	a.s.gate.Again() // an upgrade waits for it
	go func() {
		defer a.s.gate.End()
		defer close(u.done)
		ctx, cancel := context.WithTimeout(context.Background(), removeWait)
		defer cancel()
		// After an error the record stays for the next keeper, which tries it again, or until the container is deleted.
		if u.err = a.try(ctx, u); u.err != nil {
			c.log.Error("remove container whose start was cut off", "error", u.err)
		}
	}()
}

// try removes a container whose start was cut off, and its record.
func (a *adoption) try(ctx context.Context, u *undo) error {
	s, c := a.s, u.c
	end := s.orphans.BeginFor(c.id)
	defer end()
	err := s.runtime.Abort(ctx, c)
	if c.record.Reaper {
		s.inits.removePodInit(&c.record)
	}
	if err != nil {
		return err
	}
	if err := s.table.Forget(c.id); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.undos, c.id)
	return nil
}

// awaitUndos waits until the starts that were cut off are undone, for undoWait at most.
func (a *adoption) awaitUndos() {
	a.mu.Lock()
	var all []*undo
	for _, u := range a.undos {
		all = append(all, u)
	}
	a.mu.Unlock()
	over := time.After(undoWait)
	for _, u := range all {
		select {
		case <-u.done:
		case <-over:
			return
		}
	}
}

// unfinished is the undo of a container's start that is under way or has failed; nil if there is none.
func (a *adoption) unfinished(id string) *undo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.undos[id]
}

// checkUndone is nil if nothing is left of an earlier start of a container that was cut off.
func (a *adoption) checkUndone(id string) error {
	u := a.unfinished(id)
	if u == nil {
		return nil
	}
	select {
	case <-u.done:
		if a.unfinished(id) == nil {
			return nil
		}
		return fmt.Errorf("its start was cut off by the end of the keeper, and could not be undone: %w: %w", u.err,
			errdefs.ErrFailedPrecondition)
	default:
		return fmt.Errorf("its start was cut off by the end of the keeper, and is still being undone: %w",
			errdefs.ErrUnavailable)
	}
}

// finish removes what is left of a container whose start was cut off.
func (a *adoption) finish(ctx context.Context, id string) error {
	u := a.unfinished(id)
	if u == nil {
		return nil
	}
	select {
	case <-u.done:
	case <-ctx.Done():
		return fmt.Errorf("undo the start of container %s, which was cut off: %w", id, ctx.Err())
	}
	if a.unfinished(id) == nil {
		return nil
	}
	if err := a.try(ctx, u); err != nil {
		return fmt.Errorf("undo the start of container %s, which was cut off: %w", id, err)
	}
	return nil
}
