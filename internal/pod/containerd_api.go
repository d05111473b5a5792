package pod

import (
	"context"
	"encoding/json"
	"fmt"

	"berth/internal/model"
	"berth/internal/pod/record"
)

// ContainerSpec is the OCI specification of a container as JSON, with the changes since it was made.
func (m *Manager) ContainerSpec(_ context.Context, id string) ([]byte, error) {
	c, err := m.index.Container(id)
	if err != nil {
		return nil, err
	}
	spec, err := c.ReadSpec()
	if err != nil {
		return nil, fmt.Errorf("the specification of container %s: %w", record.ShortID(c.ID()), err)
	}
	return json.Marshal(spec)
}

// ContainerProcesses are the IDs of the processes in a container's cgroup, as the node has them.
func (m *Manager) ContainerProcesses(_ context.Context, id string) ([]int, error) {
	c, err := m.index.Container(id)
	if err != nil {
		return nil, err
	}
	return m.cgroups.Processes(c.Record().Cgroup)
}

// CgroupFigures are what the cgroups of containers that run, and of sandboxes, say, in the order of their IDs. nil: it
// does not run, or is gone. Of a sandbox it is the cgroup of its init process, or what RenewSandboxCgroup has made.
func (m *Manager) CgroupFigures(ctx context.Context, ids []string) []*model.CgroupFigures {
	return m.readings.Figures(ctx, ids)
}

// SandboxCgroup is the cgroup that RenewSandboxCgroup makes, in the form that a specification has for the node's
// driver.
func (m *Manager) SandboxCgroup(_ context.Context, id string) (string, error) {
	s, err := m.index.Sandbox(id)
	if err != nil {
		return "", err
	}
	return m.cgroups.SandboxPath(s.Record().CgroupParent, s.ID()), nil
}

// RenewSandboxCgroup makes the cgroup of a ready pod that monitors find the pod by (cgroups.Driver.RenewSandbox). It
// goes when the pod stops.
func (m *Manager) RenewSandboxCgroup(ctx context.Context, id string) error {
	return m.sandboxCgroup(ctx, id, m.cgroups.RenewSandbox)
}

// RemoveSandboxCgroup removes what RenewSandboxCgroup has made, if it has.
func (m *Manager) RemoveSandboxCgroup(ctx context.Context, id string) error {
	return m.sandboxCgroup(ctx, id, m.cgroups.RemoveSandbox)
}

// sandboxCgroup does something to the cgroup of a ready pod's sandbox, which neither stops nor goes meanwhile.
func (m *Manager) sandboxCgroup(ctx context.Context, id string, act func(*record.Sandbox) error) error {
	s, err := m.index.Sandbox(id)
	if err != nil {
		return err
	}
	release, err := s.Share(ctx, "change the cgroup of")
	if err != nil {
		return err
	}
	defer release()
	r := s.Record()
	if r.Phase != record.SandboxReady {
		return nil
	}
	return act(&r)
}
