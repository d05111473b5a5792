package pod

import (
	"context"
	"fmt"

	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/stats"
)

// readings reads what pods and containers use. Its methods may be called concurrently.
type readings struct {
	sampler *stats.Sampler
	index   *index.Index
	dirs    *layout.Dirs
	cgroups *cgroups.Driver
}

func (rd *readings) containerTarget(c *index.Container) stats.Target {
	r := c.Record()
	t := stats.Target{ID: c.ID(), Layer: rootfs.Upper(rd.dirs.Container(c.ID()))}
	if r.Phase == record.ContainerRunning {
		t.Cgroup = r.Cgroup
	}
	return t
}

// ContainerUsage reads what one container uses.
func (m *Manager) ContainerUsage(ctx context.Context, id string) (*model.ContainerUsage, error) {
	c, err := m.index.Container(id)
	if err != nil {
		return nil, err
	}
	return m.readings.containerUsage(ctx, []*index.Container{c})[0], nil
}

func (rd *readings) containerUsage(ctx context.Context, list []*index.Container) []*model.ContainerUsage {
	targets := make([]stats.Target, len(list))
	for i, c := range list {
		targets[i] = rd.containerTarget(c)
	}
	usage := rd.sampler.Containers(ctx, targets)
	rd.forgetGone(targets)
	for i, c := range list {
		usage[i].Container = c.Status()
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
	list := make([]*index.Container, 0, len(selected))
	for _, st := range selected {
		if _, c := m.index.ByID(st.ID); c != nil {
			list = append(list, c)
		}
	}
	return m.readings.containerUsage(ctx, list), nil
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
	return m.readings.sandboxUsage(ctx, []*index.Sandbox{s})[0], nil
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
	return m.readings.sandboxUsage(ctx, list), nil
}

// forgetGone drops what the sampler remembers of pods and containers that were removed while they were read.
func (rd *readings) forgetGone(targets []stats.Target) {
	for _, t := range targets {
		if !rd.index.Has(t.ID) {
			rd.sampler.Forget(t.ID)
		}
	}
}

func (rd *readings) sandboxTarget(s *index.Sandbox) stats.Target {
	r := s.Record()
	t := stats.Target{ID: s.ID(), Cgroup: rd.cgroups.PodDir(r.CgroupParent)}
	if !r.NodeNetwork() {
		t.NetNS = rd.dirs.Namespaces(s.ID()).Path(namespace.Network)
		t.Network = true
	}
	return t
}

func (rd *readings) sandboxUsage(ctx context.Context, list []*index.Sandbox) []*model.SandboxUsage {
	targets := make([]stats.Target, len(list))
	place := make(map[string]int, len(list))
	for i, s := range list {
		targets[i] = rd.sandboxTarget(s)
		place[s.ID()] = i
	}
	usage := rd.sampler.Sandboxes(ctx, targets)
	rd.forgetGone(targets)
	for i, s := range list {
		usage[i].Sandbox = s.Status()
	}
	var running []*index.Container
	for _, c := range rd.index.Containers() {
		if _, wanted := place[c.Sandbox.ID()]; wanted && c.Record().Phase == record.ContainerRunning {
			running = append(running, c)
		}
	}
	for i, u := range rd.containerUsage(ctx, running) {
		pod := usage[place[running[i].Sandbox.ID()]]
		pod.Containers = append(pod.Containers, u)
	}
	return usage
}
