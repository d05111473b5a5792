package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/keeper/protocol"
	"berth/internal/keeper/runtime/libcontainer"

	api "berth/api/keeper"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
)

// errThawed is the error of the end of a checkpoint whose container was thawed before.
var errThawed = fmt.Errorf("the container was thawed before its files were copied: %w", errdefs.ErrFailedPrecondition)

var errNoNonce = fmt.Errorf("a checkpoint without nonce or timeout: %w", errdefs.ErrInvalidArgument)

// checkpoint freezes a container and writes its processes down. That it is frozen for this is in its record before it
// is, so that whichever keeper finds the record thaws it.
func (s *Server) checkpoint(ctx context.Context, req *api.CheckpointRequest) error {
	for _, dir := range []string{req.Images, req.Work} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("directory %q is not absolute: %w", dir, errdefs.ErrInvalidArgument)
		}
	}
	if req.Nonce == "" || req.TimeoutNanos <= 0 {
		return errNoNonce
	}
	c, err := s.find(req.Id)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(time.Duration(req.TimeoutNanos))
	begin := func(end context.CancelFunc) error { return c.beginCheckpoint(req.Nonce, req.Session, end) }
	if req.Frozen {
		begin = func(end context.CancelFunc) error { return c.resumeCheckpoint(req.Nonce, end) }
	}
	return s.whileFrozen(ctx, c, req.Nonce, deadline, begin, func(ctx context.Context) error {
		return s.dump(ctx, c, req)
	})
}

// freeze freezes a container for a checkpoint that follows, with the same nonce.
func (s *Server) freeze(ctx context.Context, req *api.FreezeRequest) error {
	if req.Nonce == "" || req.TimeoutNanos <= 0 {
		return errNoNonce
	}
	c, err := s.find(req.Id)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(time.Duration(req.TimeoutNanos))
	begin := func(end context.CancelFunc) error { return c.beginCheckpoint(req.Nonce, req.Session, end) }
	return s.whileFrozen(ctx, c, req.Nonce, deadline, begin, func(ctx context.Context) error {
		return s.runtime.Freeze(ctx, c)
	})
}

// whileFrozen calls fn between begin and the end of the freezing call. The container is thawed if fn fails, or at the
// deadline.
func (s *Server) whileFrozen(ctx context.Context, c *container, nonce string, deadline time.Time,
	begin func(end context.CancelFunc) error, fn func(context.Context) error) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err := begin(cancel); err != nil {
		return err
	}
	err := fn(ctx)
	c.mu.Lock()
	c.endDump = nil
	c.mu.Unlock()
	// The context alone does not say so: after a halt of the machine its timer may be late.
	if err == nil && (ctx.Err() != nil || !time.Now().Before(deadline)) {
		err = errThawed
	}
	if err != nil {
		_ = s.thaw(c, nonce)
		return err
	}
	time.AfterFunc(time.Until(deadline), func() { _ = s.thaw(c, nonce) })
	return nil
}

// beginCheckpoint writes into the record that the container is frozen for a checkpoint. end ends the call that freezes
// it, so that a thaw need not wait for it.
func (c *container) beginCheckpoint(nonce, session string, end context.CancelFunc) error {
	c.mu.Lock()
	r := c.record
	c.mu.Unlock()
	switch {
	case r.State != protocol.StateRunning:
		return fmt.Errorf("container %s is %s, not running: %w", c.id, r.State, errdefs.ErrFailedPrecondition)
	case r.Runtime != "":
		return fmt.Errorf(
			"checkpoint of container %s: its runtime is %s, and only those of the built-in runtime can be written down: %w",
			c.id, r.Runtime, errdefs.ErrNotImplemented)
	case cgroupdir.Frozen(r.Cgroups):
		return fmt.Errorf("container %s is paused: %w", c.id, errdefs.ErrFailedPrecondition)
	}
	var err error
	c.change(func(r *record.Container) {
		if r.Checkpoint != "" {
			err = fmt.Errorf("a checkpoint of container %s is under way: %w", c.id, errdefs.ErrFailedPrecondition)
			return
		}
		r.Checkpoint, r.CheckpointBy = nonce, session
		c.thawed, c.endDump = make(chan struct{}), end
	})
	return err
}

// resumeCheckpoint takes over a container that freeze has frozen with the same nonce.
func (c *container) resumeCheckpoint(nonce string, end context.CancelFunc) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record.Checkpoint != nonce || c.endDump != nil || c.thawing {
		return errThawed
	}
	c.endDump = end
	return nil
}

func (s *Server) dump(ctx context.Context, c *container, req *api.CheckpointRequest) error {
	for _, dir := range []string{req.Images, req.Work} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return s.runtime.Checkpoint(ctx, c, &runtime.Dump{
		CRIU: req.Criu, Images: req.Images, Work: req.Work,
		Group: func(pgid int) { c.change(func(r *record.Container) { r.CheckpointGroup = pgid }) },
	})
}

// thaw ends a checkpoint and lets its container run again. An empty nonce stands for any checkpoint. If the checkpoint
// is still being written, thaw stops the writer, whose end thaws the container: a thaw at once would not be enough,
// because the writer could freeze the container after it, for ever.
func (s *Server) thaw(c *container, nonce string) error {
	c.mu.Lock()
	r, thawed := c.record, c.thawed
	if r.Checkpoint == "" || nonce != "" && r.Checkpoint != nonce || c.thawing {
		c.mu.Unlock()
		return errThawed
	}
	if c.endDump != nil {
		c.endDump()
		c.mu.Unlock()
		return nil
	}
	c.thawing = true
	c.mu.Unlock()
	cgroupdir.Thaw(r.Cgroups)
	// Only now: a keeper that finds the record thaws the container until it is, and no other checkpoint begins before.
	c.change(func(r *record.Container) {
		r.Checkpoint, r.CheckpointBy, r.CheckpointGroup = "", "", 0
		c.thawing, c.thawed = false, nil
	})
	if thawed != nil {
		close(thawed)
	}
	return nil
}

// thawInherited thaws a container that an earlier keeper has frozen for a checkpoint. That keeper's criu is ended
// first, since it freezes the container again as it ends.
func (s *Server) thawInherited(c *container) {
	c.mu.Lock()
	group := c.record.CheckpointGroup
	holds := c.record.Checkpoint != ""
	c.mu.Unlock()
	if !holds {
		return
	}
	s.watching.Go(func() {
		if group > 0 {
			libcontainer.EndDump(group)
		}
		_ = s.thaw(c, "")
	})
}
