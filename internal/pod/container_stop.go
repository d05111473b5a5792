package pod

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// StopContainer ends a container: its stop signal first, SIGKILL when timeout has passed (at once for 0). It is
// idempotent: another call does not send the stop signal again, but waits for its own timeout. A container that does
// not exist is stopped.
func (m *Manager) StopContainer(ctx context.Context, id string, timeout time.Duration) error {
	c, err := m.index.Container(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Stopping()()
	// A start that is on its way ends first; then nothing is held, so that a second caller can shorten the patience of
	// a first.
	release, err := c.Lock(ctx, "stop")
	if err != nil {
		return err
	}
	r := c.Record()
	release()
	switch r.Phase {
	case record.ContainerRunning:
	case record.ContainerStarting:
		// An earlier berthd has asked for its start, which recovery could neither follow to its end nor undo.
		if err := m.teardown.EndStarting(ctx, c); err != nil {
			return err
		}
		if r = c.Record(); r.Phase != record.ContainerRunning {
			return nil
		}
	default:
		return nil
	}
	m.relay.StopContainer(ctx, c)
	if timeout > 0 {
		if err := m.sendStopSignal(ctx, c); err != nil {
			return err
		}
		if err := m.teardown.LetEnd(ctx, c); err != nil {
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
	return m.teardown.Kill(ctx, c)
}

// sendStopSignal sends a container its stop signal, unless a stop before this one has: a kubelet repeats StopContainer,
// and many programs end at once when a second signal comes. Calls at the same time come here one after the other. The
// record is written after the signal, so a berthd that is killed in between sends the signal twice and not never.
func (m *Manager) sendStopSignal(ctx context.Context, c *index.Container) error {
	release, err := c.Lock(ctx, "stop")
	if err != nil {
		return err
	}
	defer release()
	r := c.Record()
	if r.Phase != record.ContainerRunning || r.StopSignaled {
		return nil
	}
	sig := r.StopSignal
	if sig == 0 {
		sig = syscall.SIGTERM
	}
	err = m.cfg.Keeper.Signal(ctx, c.ID(), sig, false)
	switch {
	case errors.Is(err, errdefs.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("send %v to container %s: %w", sig, record.ShortID(c.ID()), err)
	}
	return c.Update(record.Happened, func(r *record.Container) { r.StopSignaled = true })
}
