package pod

import (
	"context"
	"fmt"

	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
	"berth/internal/stats/cadvisor"
)

// ContainerUsage reads what one container uses.
func (m *Manager) ContainerUsage(ctx context.Context, id string) (*model.ContainerUsage, error) {
	c, err := m.index.Container(id)
	if err != nil {
		return nil, err
	}
	return m.readings.Containers(ctx, []*index.Container{c})[0], nil
}

// ListContainerUsage reads what the running containers use that a filter selects.
func (m *Manager) ListContainerUsage(ctx context.Context, f model.ContainerFilter) ([]*model.ContainerUsage, error) {
	if len(f.States) == 0 {
		f.States = []model.ContainerState{model.ContainerRunning, model.ContainerPaused}
	}
	selected, err := m.ListContainers(ctx, f)
	if err != nil {
		return nil, err
	}
	list := make([]*index.Container, 0, len(selected))
	for _, st := range selected {
		if _, c := m.index.ByID(st.ID); c != nil {
			list = append(list, c)
		}
	}
	return m.readings.Containers(ctx, list), nil
}

// SandboxUsage reads what one pod and its containers use.
func (m *Manager) SandboxUsage(ctx context.Context, id string) (*model.SandboxUsage, error) {
	s, err := m.index.Sandbox(id)
	if err != nil {
		return nil, err
	}
	if st := s.Status(); st.State != model.SandboxReady {
		return nil, fmt.Errorf("stats of pod sandbox %s: %w", record.ShortID(s.ID()), errSandboxNotReady)
	}
	return m.readings.Sandboxes(ctx, []*index.Sandbox{s})[0], nil
}

// ListSandboxUsage reads what the ready pods use that a filter selects.
func (m *Manager) ListSandboxUsage(ctx context.Context, f model.SandboxFilter) ([]*model.SandboxUsage, error) {
	if f.State == "" {
		f.State = model.SandboxReady
	}
	selected, err := m.ListSandboxes(ctx, f)
	if err != nil {
		return nil, err
	}
	list := make([]*index.Sandbox, 0, len(selected))
	for _, st := range selected {
		if s, _ := m.index.ByID(st.ID); s != nil {
			list = append(list, s)
		}
	}
	return m.readings.Sandboxes(ctx, list), nil
}

// MetricDescriptors are the metrics that ListSandboxMetrics may give. They do not change.
func (m *Manager) MetricDescriptors() []model.MetricDescriptor { return cadvisor.Descriptors() }

// ListSandboxMetrics reads the metrics of the ready pods and their running containers. One that does not answer in time
// has its last figures, with the time of those.
func (m *Manager) ListSandboxMetrics(ctx context.Context) ([]model.SandboxMetrics, error) {
	return m.readings.Metrics(ctx), nil
}
