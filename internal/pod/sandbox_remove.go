package pod

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
)

// RemoveSandbox removes a pod with all its containers, running ones included. It is idempotent.
func (m *Manager) RemoveSandbox(ctx context.Context, id string) error {
	s, err := m.index.Sandbox(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	release, err := s.Lock(ctx, "remove")
	if err != nil {
		return err
	}
	defer release()
	if m.index.Gone(s) {
		return nil // another removal was first
	}
	defer m.prepared.Gone()
	return m.teardown.RemoveSandbox(ctx, s)
}
