package v1alpha1

import (
	"maps"
	"math"
	"slices"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/cri/request"
	"berth/internal/model"
)

func toSandboxConfig(c *check, p path, in *api.PodSandboxConfig) *model.SandboxConfig {
	if in == nil {
		c.Fail(p, "is required")
		return nil
	}
	c.Name(p.Field("name"), in.GetName())
	c.Hostname(p.Field("hostname"), in.GetHostname())
	c.LogDirectory(p.Field("log_directory"), in.GetLogDirectory())
	c.Keys(p.Field("labels"), in.Labels)
	c.Keys(p.Field("annotations"), in.Annotations)
	parent := in.GetLinux().GetCgroupParent()
	c.Inside(p.Field("linux").Field("cgroup_parent"), parent)
	return &model.SandboxConfig{
		Name:         in.GetName(),
		Metadata:     podMetadata(in.GetName(), in.Labels),
		Hostname:     in.GetHostname(),
		LogDirectory: in.GetLogDirectory(),
		DNS:          toDNS(c, p.Field("dns_options"), in.DnsOptions),
		PortMappings: request.PortMappings(c, p.Field("port_mappings"), in.PortMappings, protocols),
		Labels:       maps.Clone(in.Labels),
		Annotations:  maps.Clone(in.Annotations),
		CgroupParent: parent,
		OwnCgroup:    parent != "",
		Security: model.SandboxSecurity{
			Namespaces: toNamespaces(in.GetLinux().GetNamespaceOptions()),
			Privileged: true, // only containers say whether they are, and any may
		},
		Resources: toPodResources(c, p.Field("resources"), in.Resources),
	}
}

func toDNS(c *check, p path, d *api.DNSOption) *model.DNS {
	if d == nil {
		return nil
	}
	searches := c.DNS(p, d)
	return &model.DNS{Servers: slices.Clone(d.Servers), Searches: searches}
}

// toNamespaces gives each container a PID namespace of its own where the pod is not in the node's: the interface knows
// no other.
func toNamespaces(o *api.NamespaceOption) model.NamespaceOptions {
	mode := func(node bool, otherwise model.NamespaceMode) model.NamespaceMode {
		if node {
			return model.NamespaceNode
		}
		return otherwise
	}
	return model.NamespaceOptions{
		Network: mode(o.GetHostNetwork(), model.NamespacePod),
		PID:     mode(o.GetHostPid(), model.NamespaceContainer),
		IPC:     mode(o.GetHostIpc(), model.NamespacePod),
	}
}

const (
	cpuPeriod = 100000 // µs, the kernel's own
	minCores  = 0.01   // of which the kernel makes its smallest quota, 1 ms
	maxCores  = 1 << 20

	sharesPerCore = 1024
)

// toPodResources translates limits into what the kernel enforces, and requests into weights and a soft limit.
func toPodResources(c *check, p path, r *api.PodSandboxResources) *model.Resources {
	var out model.Resources
	limit, requested := requirements(c, p.Field("cpu"), r.GetCpu(), maxCores)
	if limit > 0 {
		if limit < minCores {
			c.Fail(p.Field("cpu").Field("limits"), "%g cores are less than %g, the least that the kernel can enforce",
				limit, minCores)
		}
		out.CPUPeriod, out.CPUQuota = cpuPeriod, int64(math.Round(limit*cpuPeriod))
	}
	if requested == 0 {
		requested = limit
	}
	if requested > 0 {
		out.CPUShares = int64(min(max(math.Round(requested*sharesPerCore), request.MinCPUShares), request.MaxCPUShares))
	}
	limit, requested = requirements(c, p.Field("memory"), r.GetMemory(), 1<<62)
	for field, v := range map[string]float64{"limits": limit, "requests": requested} {
		if v != math.Trunc(v) {
			c.Fail(p.Field("memory").Field(field), "%g is not a whole number of bytes", v)
		}
	}
	out.MemoryLimit, out.MemoryReservation = int64(limit), int64(requested)
	if out.MemoryReservation == 0 {
		out.MemoryReservation = out.MemoryLimit
	}
	if out.CPUShares == 0 && out.MemoryReservation == 0 {
		return nil
	}
	return &out
}

// requirements returns what is wanted of one resource; 0 is nothing in particular.
func requirements(c *check, p path, r *api.ResourceRequirements, most float64) (limits, requests float64) {
	limits, requests = r.GetLimits(), r.GetRequests()
	for field, v := range map[string]float64{"limits": limits, "requests": requests} {
		if !(v >= 0 && v <= most) { // NaN is neither
			c.Fail(p.Field(field), "%g is not in 0..%g", v, most)
		}
	}
	if limits > 0 && requests > limits {
		c.Fail(p.Field("requests"), "%g is more than limits, %g", requests, limits)
	}
	return limits, requests
}
