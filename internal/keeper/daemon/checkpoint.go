package daemon

import (
	"context"
	"errors"
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

// errGoneOn is what ends a checkpoint whose container has been let go on.
var errGoneOn = fmt.Errorf("the container has gone on before its files were copied: %w", errdefs.ErrFailedPrecondition)

// checkpoint freezes a container and writes its processes down. That it is frozen for this is in its row before it is,
// so that whichever keeper finds the row lets it go on.
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
	if err := c.standStill(req); err != nil {
		return err
	}
	timeout := time.Duration(req.TimeoutNanos)
	deadline := time.Now().Add(timeout)
	time.AfterFunc(timeout, func() { _ = s.goOn(c, req.Nonce) })
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if err = s.dump(ctx, c, req); err != nil {
		if gerr := s.goOn(c, req.Nonce); gerr != nil && !errors.Is(gerr, errGoneOn) {
			c.log.Error("let a container go on after a checkpoint", "error", gerr)
		}
		return err
	}
	return nil
}

// standStill writes into the row that the container is being written down.
func (c *container) standStill(req *api.CheckpointRequest) error {
	c.mu.Lock()
	r := c.row
	c.mu.Unlock()
	switch {
	case r.State != protocol.StateRunning:
		return fmt.Errorf("container %s is %s, not running: %w", c.id, r.State, errdefs.ErrFailedPrecondition)
	case r.Runtime != "":
		return fmt.Errorf("checkpoint of container %s: its runtime is %s, and only those of the built-in runtime can be written down: %w",
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
		c.still = make(chan struct{})
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

// goOn lets a container go on that a checkpoint holds; an empty nonce is that of any.
func (s *Server) goOn(c *container, nonce string) error {
	c.mu.Lock()
	r, still := c.row, c.still
	if r.Checkpoint == "" || nonce != "" && r.Checkpoint != nonce {
		c.mu.Unlock()
		return errGoneOn
	}
	c.row.Checkpoint, c.still = "", nil
	c.mu.Unlock()
	cgroupdir.Unfreeze(r.Cgroups)
	c.change(func(r *record.Container) { r.CheckpointBy, r.CheckpointGroup = "", 0 })
	if still != nil {
		close(still)
	}
	return nil
}

// takeBack lets a container go on that another keeper has held: its criu, which freezes it again as it ends, first.
func (s *Server) takeBack(c *container) {
	c.mu.Lock()
	group := c.row.CheckpointGroup
	holds := c.row.Checkpoint != ""
	c.mu.Unlock()
	if !holds {
		return
	}
	s.watching.Go(func() {
		if group > 0 {
			libcontainer.EndDump(group)
		}
		_ = s.goOn(c, "")
	})
}
