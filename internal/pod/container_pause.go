package pod

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/pod/index"
	"berth/internal/pod/record"
	"berth/internal/undo"
)

// errPaused is why a call that needs the processes of a container to run cannot be answered.
var errPaused = fmt.Errorf("it is paused: %w", errdefs.ErrFailedPrecondition)

// PauseContainer freezes the processes of a running container. One that is paused already stays so.
func (m *Manager) PauseContainer(ctx context.Context, id string) error {
	return m.whileRunning(ctx, "pause", id, func(c *index.Container) error {
		// The record first: a container that is frozen and that no record calls paused would stay so for ever.
		if err := c.Update(record.Save, func(r *record.Container) { r.Paused = true }); err != nil {
			return err
		}
		err := m.cfg.Keeper.Pause(ctx, c.ID())
		if err == nil {
			return nil
		}
		clean, cancel := undo.Context(ctx)
		defer cancel()
		return errors.Join(err, m.teardown.resume(clean, c))
	})
}

// UnpauseContainer lets the processes of a paused container go on. One that is not paused is left alone.
func (m *Manager) UnpauseContainer(ctx context.Context, id string) error {
	return m.whileRunning(ctx, "unpause", id, func(c *index.Container) error { return m.teardown.resume(ctx, c) })
}

// resume needs the container's lock.
func (td *teardown) resume(ctx context.Context, c *index.Container) error {
	if err := td.keeper.Resume(ctx, c.ID()); err != nil {
		return err
	}
	return c.Update(record.Save, func(r *record.Container) { r.Paused = false })
}

func (m *Manager) whileRunning(ctx context.Context, act, id string, do func(*index.Container) error) error {
	c, err := m.index.Container(id)
	if err != nil {
		return err
	}
	release, err := c.Lock(ctx, act)
	if err != nil {
		return err
	}
	defer release()
	if r := c.Record(); r.Phase != record.ContainerRunning {
		return fmt.Errorf("%s container %s: it is %s: %w", act, record.ShortID(c.ID()), r.Phase,
			errdefs.ErrFailedPrecondition)
	}
	if err := do(c); err != nil {
		return fmt.Errorf("%s container %s: %w", act, record.ShortID(c.ID()), err)
	}
	return nil
}

// reconcilePause makes a running container's record say of its pause what the kernel says.
func (rc *recovery) reconcilePause(ctx context.Context, c *index.Container) {
	if !c.Record().Paused {
		return // what is frozen has a record that was written before
	}
	st, err := rc.m.cfg.Keeper.Status(ctx, c.ID())
	if err == nil && !st.Paused {
		err = c.Update(record.Save, func(r *record.Container) { r.Paused = false })
	}
	rc.clean("find out whether a container is paused", containerID(c.ID()), err)
}
