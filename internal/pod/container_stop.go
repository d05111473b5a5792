package pod

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod/record"
)

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
		sig := r.StopSignal
		if sig == 0 {
			sig = syscall.SIGTERM
		}
		if err := m.cfg.Keeper.Signal(ctx, c.ID(), sig, false); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			return fmt.Errorf("send %v to container %s: %w", sig, record.ShortID(c.ID()), err)
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
