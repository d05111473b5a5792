package pod

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"berth/internal/pod/index"
)

// RemoveContainer removes a container, running or not, and waits some seconds for the removal of a large writable
// layer: a kubelet that collects garbage measures the disk next, and evicts pods if there is no more space than before.
// It is idempotent.
func (m *Manager) RemoveContainer(ctx context.Context, id string) error {
	c, err := m.removeContainer(ctx, id)
	if c != nil && err == nil {
		m.teardown.Trash.Await(ctx, c.ID())
	}
	return err
}

// removeContainer holds locks that the wait for the space is not to hold. It returns no container if there is none.
func (m *Manager) removeContainer(ctx context.Context, id string) (*index.Container, error) {
	c, err := m.index.Container(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	releasePod, err := c.LockPod(ctx, "remove")
	if err != nil {
		return nil, err
	}
	defer releasePod()
	return c, m.teardown.RemoveContainer(ctx, c)
}
