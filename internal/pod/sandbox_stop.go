package pod

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
)

// StopSandbox ends what runs in a pod at once and gives back its address, its host ports and its namespaces. It is
// idempotent; a pod that does not exist is stopped.
func (m *Manager) StopSandbox(ctx context.Context, id string) error {
	s, err := m.index.Sandbox(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	release, err := s.Lock(ctx, "stop")
	if err != nil {
		return err
	}
	defer release()
	if m.index.Gone(s) {
		return nil // a removal was first
	}
	return m.teardown.StopSandbox(ctx, s)
}
