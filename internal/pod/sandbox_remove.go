package pod

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
)

// RemoveSandbox removes a pod with all its containers, running ones included, and waits for large layers as
// RemoveContainer does. It is idempotent.
func (m *Manager) RemoveSandbox(ctx context.Context, id string) error {
	containers, err := m.removeSandbox(ctx, id)
	if err == nil {
		m.teardown.Trash.Await(ctx, containers...)
	}
	return err
}

// removeSandbox holds locks that the wait for the space is not to hold. It returns the IDs of the pod's containers.
func (m *Manager) removeSandbox(ctx context.Context, id string) (containers []string, err error) {
	s, err := m.index.Sandbox(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	release, err := s.Lock(ctx, "remove")
	if err != nil {
		return nil, err
	}
	defer release()
	if m.index.Gone(s) {
		return nil, nil // another removal was first
	}
	defer m.prepared.Gone()
	for _, c := range m.index.ContainersOf(s.ID()) {
		containers = append(containers, c.ID())
	}
	return containers, m.teardown.RemoveSandbox(ctx, s)
}
