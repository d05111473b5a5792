package pod

import (
	"context"

	"golang.org/x/sys/unix"

	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
)

// ContainerStatus is the state of one container.
func (m *Manager) ContainerStatus(_ context.Context, id string) (*model.ContainerStatus, error) {
	c, err := m.index.Container(id)
	if err != nil {
		return nil, err
	}
	return c.Status(), nil
}

// ContainerInfo is what helps a person to understand a container: values for JSON by name. config is a
// *model.ContainerConfig, shared and immutable.
func (m *Manager) ContainerInfo(_ context.Context, id string) (map[string]any, error) {
	c, err := m.index.Container(id)
	if err != nil {
		return nil, err
	}
	r, pod := c.Record(), c.Sandbox.Record()
	spec, err := c.ReadSpec()
	info := map[string]any{
		"sandboxID":      r.SandboxID,
		"pid":            r.PID,
		"privileged":     r.Config.Security.Privileged, // where CRI-O has it, for Falco
		"phase":          r.Phase,
		"removing":       r.Phase == record.ContainerRemoving,
		"cgroup":         r.Cgroup,
		"directory":      m.containers.Path(c.ID()),
		"rootfs":         m.dirs.Rootfs(&pod, c.ID()),
		"writableLayer":  rootfs.Upper(m.containers.Path(c.ID())),
		"logPath":        r.LogPath,
		"logLimits":      r.LogLimits,
		"user":           r.User,
		"resources":      r.Resources,
		"ignored":        r.Ignored,
		"stopSignal":     unix.SignalName(r.StopSignal),
		"imageID":        r.ImageID,
		"diskQuotas":     m.storage.Quotas.Held(c.ID()),
		"runtimeHandler": pod.Handler,
		"setup":          r.Setup,
		"timings":        r.Timings,
		"config":         r.Config,
		"restored":       r.Restored,
		"runtimeType":    model.RuntimeType,
		"extensions": containerExtensions{Name: r.Config.Name, QuotaID: r.Config.QuotaID,
			NetPriority: r.Config.NetPriority, CreateHostPaths: r.Config.CreateHostPaths},
	}
	if err == nil {
		info["runtimeSpec"] = spec
		info["mounts"] = spec.Mounts
		if spec.Linux != nil {
			info["namespaces"] = spec.Linux.Namespaces
		}
	} else {
		info["runtimeSpecError"] = err.Error()
	}
	return info, nil
}

// containerExtensions are what clients of APIs other than v1 ask for and the CRI's configuration has no field for.
type containerExtensions struct {
	Name            string `json:"name,omitempty"`
	QuotaID         string `json:"quotaID,omitempty"`
	NetPriority     int64  `json:"netPriority,omitempty"`
	CreateHostPaths bool   `json:"createHostPaths,omitempty"`
}
