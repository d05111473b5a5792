package pod

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/pod/record"
)

// thawAfter is how long a killed container may take to end before it is taken for frozen.
const thawAfter = 500 * time.Millisecond

// StopContainer ends a container: its stop signal first, SIGKILL when timeout has passed (at once for 0). It is
// idempotent; a container that does not exist is stopped.
func (m *Manager) StopContainer(ctx context.Context, id string, timeout time.Duration) error {
	c, err := m.index.container(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	c.cutCheckpoint()
	// A start that is on its way ends first; then nothing is held, so that a second caller can shorten the patience of
	// a first.
	release, err := c.hold(ctx, "stop")
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
		if err := m.cfg.Keeper.Signal(ctx, c.id, sig, false); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			return fmt.Errorf("send %v to container %s: %w", sig, record.ShortID(c.id), err)
		}
		if err := m.letEnd(ctx, c); err != nil {
			return fmt.Errorf("stop container %s: %w", record.ShortID(c.id), err)
		}
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		select {
		case <-c.exited:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("stop container %s: %w", record.ShortID(c.id), ctx.Err())
		case <-timer.C:
		}
	}
	return m.kill(ctx, c)
}

// kill ends all processes of a container and waits until it has exited.
func (m *Manager) kill(ctx context.Context, c *container) error {
	if c.Record().Phase != record.ContainerRunning {
		return nil
	}
	c.cutCheckpoint()
	if err := m.cfg.Keeper.Signal(ctx, c.id, syscall.SIGKILL, true); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		return fmt.Errorf("kill container %s: %w", record.ShortID(c.id), err)
	}
	if err := m.letEnd(ctx, c); err != nil {
		m.log.Debug("thaw a killed container", "container", record.ShortID(c.id), "error", err)
	}
	thaw := time.NewTimer(thawAfter)
	defer thaw.Stop()
	for {
		select {
		case <-c.exited:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("container %s was killed and has not ended: %w", record.ShortID(c.id), ctx.Err())
		case <-thaw.C: // SIGKILL waits at a frozen cgroup of version 1
			if err := m.cfg.Keeper.Resume(ctx, c.id); err != nil {
				m.log.Debug("thaw a killed container", "container", record.ShortID(c.id), "error", err)
			}
		}
	}
}

// letEnd lets a paused container take the signal that it was sent.
func (m *Manager) letEnd(ctx context.Context, c *container) error {
	if !c.Record().Paused {
		return nil
	}
	if err := m.cfg.Keeper.Resume(ctx, c.id); err != nil && !errors.Is(err, errdefs.ErrNotFound) && !errors.Is(err, errdefs.ErrFailedPrecondition) {
		return fmt.Errorf("let it go on: %w", err)
	}
	return c.Update(record.Happened, func(r *record.Container) { r.Paused = false })
}

// RemoveContainer removes a container, running or not. It is idempotent.
func (m *Manager) RemoveContainer(ctx context.Context, id string) error {
	c, err := m.index.container(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	releasePod, err := c.holdPod(ctx, "remove")
	if err != nil {
		return err
	}
	defer releasePod()
	return m.removeContainer(ctx, c)
}

// removeContainer needs the pod's op, shared or exclusive.
func (m *Manager) removeContainer(ctx context.Context, c *container) error {
	if err := m.kill(ctx, c); err != nil {
		return err
	}
	release, err := c.hold(ctx, "remove")
	if err != nil {
		return err
	}
	defer release()
	if m.index.goneContainer(c) {
		return nil
	}
	if err := c.Update(record.Happened, func(r *record.Container) { r.Phase = record.ContainerRemoving }); err != nil {
		return err
	}
	if err := m.dropContainer(ctx, c); err != nil {
		return fmt.Errorf("remove container %s: %w", record.ShortID(c.id), err)
	}
	m.tell(c.sandbox, c.id, model.EventDeleted)
	return nil
}

// dropContainer removes a container whose record says so. What fails leaves it known, so that the next call or the next start of
// berthd finishes it. The caller holds c.op.
func (m *Manager) dropContainer(ctx context.Context, c *container) error {
	if err := m.releaseContainer(ctx, c); err != nil {
		return err
	}
	if err := m.discard(m.containers.Path(c.id)); err != nil {
		return err
	}
	m.forgetContainer(c)
	return nil
}

// releaseContainer gives back what a container holds beside its record. It is idempotent. The caller holds c.op.
func (m *Manager) releaseContainer(ctx context.Context, c *container) error {
	if err := m.cfg.Keeper.Delete(ctx, c.id); err != nil {
		return err
	}
	if err := m.removeContainerCgroup(ctx, c.Record().Cgroup); err != nil {
		return err
	}
	return m.unmountContainer(c)
}

// forgetContainer drops a container of which nothing but its directory is left.
func (m *Manager) forgetContainer(c *container) {
	if err := m.discard(m.containers.Path(c.id)); err != nil {
		m.log.Error("remove a container's directory", "container", record.ShortID(c.id), "error", err)
	}
	m.cfg.Images.Release(c.id)
	m.volumes.Release(c.id)
	m.quotas.Release(c.id)
	m.freeDevices(c)
	c.ended()
	m.index.forgetContainer(c)
	m.sampler.Forget(c.id)
	m.logs.release(c.id)
}
