package pod

import (
	"context"
	"fmt"

	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/rootfs"
	"berth/internal/stats"
)

func (m *Manager) containerTarget(c *container) stats.Target {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := stats.Target{ID: c.id, Layer: rootfs.Upper(m.containers.Path(c.id))}
	if c.rec.Phase == ContainerRunning {
		t.Cgroup = c.rec.Cgroup
	}
	return t
}

// ContainerUsage reads what one container uses.
func (m *Manager) ContainerUsage(ctx context.Context, id string) (*model.ContainerUsage, error) {
	c, err := m.findContainer(id)
	if err != nil {
		return nil, err
	}
	return m.containerUsage(ctx, []*container{c})[0], nil
}

func (m *Manager) containerUsage(ctx context.Context, list []*container) []*model.ContainerUsage {
	targets := make([]stats.Target, len(list))
	for i, c := range list {
		targets[i] = m.containerTarget(c)
	}
	usage := m.sampler.Containers(ctx, targets)
	m.forgetGone(targets)
	for i, c := range list {
		usage[i].Container = c.status.Load()
	}
	return usage
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
	list := make([]*container, 0, len(selected))
	m.mu.RLock()
	for _, st := range selected {
		if c := m.ctr[st.ID]; c != nil {
			list = append(list, c)
		}
	}
	m.mu.RUnlock()
	return m.containerUsage(ctx, list), nil
}

// SandboxUsage reads what one pod and its containers use.
func (m *Manager) SandboxUsage(ctx context.Context, id string) (*model.SandboxUsage, error) {
	s, err := m.findSandbox(id)
	if err != nil {
		return nil, err
	}
	if st := s.status.Load(); st.State != model.SandboxReady {
		return nil, fmt.Errorf("stats of pod sandbox %s: %w", shortID(s.id), errSandboxNotReady)
	}
	return m.sandboxUsage(ctx, []*sandbox{s})[0], nil
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
	list := make([]*sandbox, 0, len(selected))
	m.mu.RLock()
	for _, st := range selected {
		if s := m.pod[st.ID]; s != nil {
			list = append(list, s)
		}
	}
	m.mu.RUnlock()
	return m.sandboxUsage(ctx, list), nil
}

// forgetGone drops what the sampler remembers of pods and containers that were removed while they were read.
func (m *Manager) forgetGone(targets []stats.Target) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, t := range targets {
		if m.pod[t.ID] == nil && m.ctr[t.ID] == nil {
			m.sampler.Forget(t.ID)
		}
	}
}

func (m *Manager) sandboxTarget(s *sandbox) stats.Target {
	r := s.record()
	t := stats.Target{ID: s.id, Cgroup: m.podCgroupDir(r.CgroupParent)}
	if !nodeNetwork(r.Config) {
		t.NetNS = m.namespaces(s.id).Path(namespace.Network)
		t.Network = true
	}
	return t
}

func (m *Manager) sandboxUsage(ctx context.Context, list []*sandbox) []*model.SandboxUsage {
	targets := make([]stats.Target, len(list))
	place := make(map[string]int, len(list))
	for i, s := range list {
		targets[i] = m.sandboxTarget(s)
		place[s.id] = i
	}
	usage := m.sampler.Sandboxes(ctx, targets)
	m.forgetGone(targets)
	for i, s := range list {
		usage[i].Sandbox = s.status.Load()
	}
	var running []*container
	m.mu.RLock()
	for _, c := range m.ctr {
		if _, wanted := place[c.sandbox.id]; wanted && c.record().Phase == ContainerRunning {
			running = append(running, c)
		}
	}
	m.mu.RUnlock()
	for i, u := range m.containerUsage(ctx, running) {
		pod := usage[place[running[i].sandbox.id]]
		pod.Containers = append(pod.Containers, u)
	}
	return usage
}
