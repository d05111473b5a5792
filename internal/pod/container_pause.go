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
		return errors.Join(err, m.teardown.Resume(clean, c))
	})
}

// UnpauseContainer lets the processes of a paused container run again. It does nothing if the container is not paused.
func (m *Manager) UnpauseContainer(ctx context.Context, id string) error {
	return m.whileRunning(ctx, "unpause", id, func(c *index.Container) error { return m.teardown.Resume(ctx, c) })
}

func (m *Manager) whileRunning(ctx context.Context, act, id string, do func(*index.Container) error) error {
	c, err := m.index.Container(id)
	if err != nil {
		return err
	}
	release, err := m.lockContainer(ctx, c, act)
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
