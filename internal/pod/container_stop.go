package pod

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// thawAfter is how long a killed container may take to end before it is taken for frozen.
const thawAfter = 500 * time.Millisecond

// StopContainer ends a container: its stop signal first, SIGKILL when timeout has passed (at once for 0). It is
// idempotent; a container that does not exist is stopped.
func (m *Manager) StopContainer(ctx context.Context, id string, timeout time.Duration) error {
	c, err := m.index.Container(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	c.CutCheckpoint()
	// A start that is on its way ends first; then nothing is held, so that a second caller can shorten the patience of
	// a first.
	release, err := c.Lock(ctx, "stop")
	if err != nil {
		return err
	}
	r := c.Record()
	release()
	if r.Phase != record.ContainerRunning {
		return nil
	}
	if timeout > 0 {
		sig := r.StopSignal
		if sig == 0 {
			sig = syscall.SIGTERM
		}
		if err := m.cfg.Keeper.Signal(ctx, c.ID(), sig, false); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			return fmt.Errorf("send %v to container %s: %w", sig, record.ShortID(c.ID()), err)
		}
		if err := m.teardown.letEnd(ctx, c); err != nil {
			return fmt.Errorf("stop container %s: %w", record.ShortID(c.ID()), err)
		}
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		select {
		case <-c.Exited():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("stop container %s: %w", record.ShortID(c.ID()), ctx.Err())
		case <-timer.C:
		}
	}
	return m.teardown.kill(ctx, c)
}

// kill ends all processes of a container and waits until it has exited.
func (td *teardown) kill(ctx context.Context, c *index.Container) error {
	if c.Record().Phase != record.ContainerRunning {
		return nil
	}
	c.CutCheckpoint()
	if err := td.keeper.Signal(ctx, c.ID(), syscall.SIGKILL, true); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		return fmt.Errorf("kill container %s: %w", record.ShortID(c.ID()), err)
	}
	if err := td.letEnd(ctx, c); err != nil {
		td.log.Debug("thaw a killed container", "container_id", c.ID(), "error", err)
	}
	thaw := time.NewTimer(thawAfter)
	defer thaw.Stop()
	for {
		select {
		case <-c.Exited():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("container %s was killed and has not ended: %w", record.ShortID(c.ID()), ctx.Err())
		case <-thaw.C: // SIGKILL waits at a frozen cgroup of version 1
			if err := td.keeper.Resume(ctx, c.ID()); err != nil {
				td.log.Debug("thaw a killed container", "container_id", c.ID(), "error", err)
			}
		}
	}
}

// letEnd lets a paused container take the signal that it was sent.
func (td *teardown) letEnd(ctx context.Context, c *index.Container) error {
	if !c.Record().Paused {
		return nil
	}
	err := td.keeper.Resume(ctx, c.ID())
	if err != nil && !errors.Is(err, errdefs.ErrNotFound) && !errors.Is(err, errdefs.ErrFailedPrecondition) {
		return fmt.Errorf("let it go on: %w", err)
	}
	return c.Update(record.Happened, func(r *record.Container) { r.Paused = false })
}

// RemoveContainer removes a container, running or not. It is idempotent.
func (m *Manager) RemoveContainer(ctx context.Context, id string) error {
	c, err := m.index.Container(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	releasePod, err := c.LockPod(ctx, "remove")
	if err != nil {
		return err
	}
	defer releasePod()
	return m.teardown.removeContainer(ctx, c)
}

// removeContainer needs the pod's lock, shared or exclusive.
func (td *teardown) removeContainer(ctx context.Context, c *index.Container) error {
	if err := td.kill(ctx, c); err != nil {
		return err
	}
	release, err := c.Lock(ctx, "remove")
	if err != nil {
		return err
	}
	defer release()
	if td.index.GoneContainer(c) {
		return nil
	}
	if err := c.Update(record.Happened, func(r *record.Container) { r.Phase = record.ContainerRemoving }); err != nil {
		return err
	}
	if err := td.dropContainer(ctx, c); err != nil {
		return fmt.Errorf("remove container %s: %w", record.ShortID(c.ID()), err)
	}
	td.events.Tell(c.Sandbox, c.ID(), model.EventDeleted)
	return nil
}

// dropContainer removes a container whose record says so. What fails leaves it known, so that the next call or the next
// start of berthd finishes it. The caller holds the container's lock.
func (td *teardown) dropContainer(ctx context.Context, c *index.Container) error {
	if err := td.releaseContainer(ctx, c); err != nil {
		return err
	}
	if err := td.trash.Discard(td.containers.Path(c.ID())); err != nil {
		return err
	}
	td.forgetContainer(c)
	return nil
}

// releaseContainer gives back what a container holds beside its record. It is idempotent. The caller holds the
// container's lock.
func (td *teardown) releaseContainer(ctx context.Context, c *index.Container) error {
	if err := td.keeper.Delete(ctx, c.ID()); err != nil {
		return err
	}
	if err := td.cgroups.RemoveContainer(ctx, c.Record().Cgroup); err != nil {
		return err
	}
	return td.storage.UnmountContainer(c.ContainerEntry, new(c.Sandbox.Record()))
}

// forgetContainer drops a container of which nothing but its directory is left.
func (td *teardown) forgetContainer(c *index.Container) {
	if err := td.trash.Discard(td.containers.Path(c.ID())); err != nil {
		td.log.Error("remove a container's directory", "container_id", c.ID(), "error", err)
	}
	td.storage.Release(c.ID())
	td.devices.Free(c)
	c.Ended()
	td.index.ForgetContainer(c)
	td.sampler.Forget(c.ID())
	td.logs.Release(c.ID())
}
