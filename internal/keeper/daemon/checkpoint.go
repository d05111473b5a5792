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

// checkpoint freezes a container and writes its processes down. That it is frozen for this is in its record before it
// is, so that whichever keeper finds the record thaws it.
func (s *Server) checkpoint(ctx context.Context, req *api.CheckpointRequest) error {
	for _, dir := range []string{req.Images, req.Work} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("directory %q is not absolute: %w", dir, errdefs.ErrInvalidArgument)
		}
	}
	if req.Nonce == "" || req.TimeoutNanos <= 0 {
		return fmt.Errorf("a checkpoint without nonce or timeout: %w", errdefs.ErrInvalidArgument)
	}
	c, err := s.containers.get(req.Id)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(time.Duration(req.TimeoutNanos))
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err := c.beginCheckpoint(req, cancel); err != nil {
		return err
	}
	err = s.dump(ctx, c, req)
	c.mu.Lock()
	c.endDump = nil
	c.mu.Unlock()
	if err == nil && ctx.Err() != nil {
		err = errThawed
	}
	if err != nil {
		_ = s.thaw(c, req.Nonce)
		return err
	}
	time.AfterFunc(time.Until(deadline), func() { _ = s.thaw(c, req.Nonce) })
	return nil
}

// beginCheckpoint writes into the record that the container is frozen for a checkpoint.
func (c *container) beginCheckpoint(req *api.CheckpointRequest, end context.CancelFunc) error {
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
		r.Checkpoint, r.CheckpointBy = req.Nonce, req.Session
		c.thawed, c.endDump = make(chan struct{}), end
	})
	return err
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
	if r.Checkpoint == "" || nonce != "" && r.Checkpoint != nonce {
		c.mu.Unlock()
		return errThawed
	}
	if c.endDump != nil {
		c.endDump()
		c.mu.Unlock()
		return nil
	}
	c.record.Checkpoint, c.thawed = "", nil
	c.mu.Unlock()
	cgroupdir.Thaw(r.Cgroups)
	c.change(func(r *record.Container) { r.CheckpointBy, r.CheckpointGroup = "", 0 })
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
