package pod

import (
	"context"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/ocispec"
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

// SandboxInfo is what helps a person to understand a pod: values for JSON by name. config is a *model.SandboxConfig,
// shared and immutable.
func (m *Manager) SandboxInfo(_ context.Context, id string) (map[string]any, error) {
	s, err := m.index.Sandbox(id)
	if err != nil {
		return nil, err
	}
	r := s.Record()
	namespaces := map[string]string{}
	spec := &specs.Spec{Version: specs.Version, Hostname: r.Config.Hostname,
		Annotations: ocispec.SandboxAnnotations(s.ID(), r.Config),
		Linux:       &specs.Linux{CgroupsPath: m.cgroups.SandboxPath(r.CgroupParent, s.ID())}}
	for _, pinned := range []struct {
		kind namespace.Kind
		spec specs.LinuxNamespaceType
	}{
		{namespace.Network, specs.NetworkNamespace}, {namespace.IPC, specs.IPCNamespace}, {namespace.UTS, specs.UTSNamespace},
		{namespace.PID, specs.PIDNamespace}, {namespace.User, specs.UserNamespace},
	} {
		if m.dirs.Namespaces(s.ID()).Pinned(pinned.kind) {
			path := m.dirs.Namespaces(s.ID()).Target(pinned.kind)
			namespaces[string(pinned.kind)] = path
			spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: pinned.spec, Path: path})
		}
	}
	for key, value := range r.Config.Annotations {
		if !ocispec.RuntimeAnnotation(key) {
			spec.Annotations[key] = value
		}
	}
	info := map[string]any{
		"pid":            m.processOf(&r),
		"runtimeSpec":    spec, // its namespaces are where recipes for containerd and CRI-O look for that of the network
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
		"runtimeType":    model.RuntimeType,
		"extensions":     podExtensions{Name: r.Config.Name, LXCFS: r.Config.LXCFS},
	}
	if !r.NodeNetwork() {
		info["cniResult"] = networkResult(&r, namespaces[string(namespace.Network)])
	}
	return info, nil
}

// podExtensions are the same as containerExtensions, of a pod.
type podExtensions struct {
	Name  string `json:"name,omitempty"`
	LXCFS bool   `json:"lxcfs,omitempty"`
}

// processOf is a process in the namespaces of a pod: its init, where containers share its PID namespace, or that of a
// container. A pod of containerd always has a pause process, whose PID people give to nsenter. 0: there is none.
func (m *Manager) processOf(r *record.Sandbox) int {
	if r.ReaperPID != 0 {
		return r.ReaperPID
	}
	for _, c := range m.index.ContainersOf(r.ID) {
		if cr := c.Record(); cr.Phase == record.ContainerRunning {
			return cr.PID
		}
	}
	return 0
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
