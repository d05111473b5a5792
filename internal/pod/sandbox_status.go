package pod

import (
	"context"
	"slices"
	"strings"

	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/record"
)

// SandboxStatus is the state of one pod.
func (m *Manager) SandboxStatus(_ context.Context, id string) (*model.SandboxStatus, error) {
	s, err := m.index.Sandbox(id)
	if err != nil {
		return nil, err
	}
	return s.Status(), nil
}

// SandboxInfo is what helps a person to understand a pod, as JSON values by name.
func (m *Manager) SandboxInfo(_ context.Context, id string) (map[string]string, error) {
	s, err := m.index.Sandbox(id)
	if err != nil {
		return nil, err
	}
	r := s.Record()
	namespaces := map[string]string{}
	for _, k := range []namespace.Kind{namespace.Network, namespace.IPC, namespace.UTS, namespace.PID, namespace.User} {
		if m.dirs.Namespaces(s.ID()).Pinned(k) {
			namespaces[string(k)] = m.dirs.Namespaces(s.ID()).Target(k)
		}
	}
	info := map[string]string{"info": toJSON(map[string]any{
		"pid":            r.ReaperPID,
		"initSetup":      r.ReaperSetup,
		"phase":          r.Phase,
		"runtimeHandler": r.Handler,
		"cgroupParent":   r.CgroupParent,
		"cgroup":         m.cgroups.PodDir(r.CgroupParent),
		"ownsCgroup":     m.cgroups.Owns(&r),
		"limits":         cgroups.Limits(r.Config),
		"namespaces":     namespaces,
		"ips":            r.IPs,
		"interface":      r.Interface,
		"network":        networkInfo(&r),
		"mounts":         m.dirs.Mounts(&r),
		"directory":      m.pods.Path(s.ID()),
		"stateDirectory": m.dirs.StatePod(s.ID()),
		"timings":        r.Timings,
		"config":         r.Config,
	})}
	return info, nil
}

// networkInfo is what verbose status tells of a pod's network.
func networkInfo(r *record.Sandbox) map[string]any {
	return map[string]any{
		"ofTheNode": r.NodeNetwork(),
		"interface": r.Interface,
		"ips":       r.IPs,
		"ports":     r.Config.PortMappings,
		"cniResult": r.Network,
	}
}

// ListSandboxes returns the sandboxes that a filter selects, newest first.
func (m *Manager) ListSandboxes(_ context.Context, f model.SandboxFilter) ([]*model.SandboxStatus, error) {
	all := m.index.Sandboxes()
	list := make([]*model.SandboxStatus, 0, len(all))
	for _, s := range all {
		if !strings.HasPrefix(s.ID(), f.ID) {
			continue
		}
		st := s.Status()
		if st.Making || f.State != "" && st.State != f.State || !matchLabels(st.Config.Labels, f.Labels) {
			continue
		}
		list = append(list, st)
	}
	slices.SortFunc(list, func(a, b *model.SandboxStatus) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return list, nil
}
