package pod

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
)

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
	return m.teardown.RemoveContainer(ctx, c)
}
