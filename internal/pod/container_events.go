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

// EndSubscriptions ends what Subscribe has returned, and what it will return: berthd ends, and waits for the calls that
// are under way, but not for clients that follow events.
func (m *Manager) EndSubscriptions() { m.events.Close() }
