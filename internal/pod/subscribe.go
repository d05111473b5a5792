package pod

import (
	"context"

	"berth/internal/model"
)

// Subscribe follows what happens to pods and containers until ctx ends; the channel is closed then, and also when the
// subscriber is too far behind.
func (m *Manager) Subscribe(ctx context.Context) <-chan model.ContainerEvent {
	return m.events.Follow(ctx)
}
