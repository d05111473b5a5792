package pod

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/pod/record"
)

// ReopenContainerLog makes a running container's log go to a new file at the same path, once the old one was moved
// away.
func (m *Manager) ReopenContainerLog(ctx context.Context, id string) error {
	c, err := m.index.Container(id)
	if err != nil {
		return err
	}
	r := c.Record()
	if r.Phase != record.ContainerRunning {
		return fmt.Errorf("reopen the log of container %s: %w: %w", record.ShortID(c.ID()), errNotRunning,
			errdefs.ErrFailedPrecondition)
	}
	if r.LogPath == "" {
		return fmt.Errorf("reopen the log of container %s: it has no log: %w", record.ShortID(c.ID()),
			errdefs.ErrFailedPrecondition)
	}
	if _, err := m.logs.MakeDir(r.LogPath); err != nil {
		return fmt.Errorf("reopen the log of container %s: directory of the log: %w", record.ShortID(c.ID()), err)
	}
	if err := m.cfg.Keeper.ReopenLog(ctx, c.ID()); err != nil {
		return fmt.Errorf("reopen the log of container %s: %w", record.ShortID(c.ID()), err)
	}
	return nil
}

var errNotRunning = errors.New("it is not running")
