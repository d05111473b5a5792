package v1

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri/request"
	"berth/internal/model"
)

func toSandboxConfig(c *check, p path, in *api.PodSandboxConfig) *model.SandboxConfig {
	if in == nil {
		c.Fail(p, "is required")
		return nil
	}
	c.Hostname(p.Field("hostname"), in.Hostname)
	c.LogDirectory(p.Field("log_directory"), in.LogDirectory)
	c.Keys(p.Field("labels"), in.Labels)
	c.Keys(p.Field("annotations"), in.Annotations)
	linux, at := in.GetLinux(), p.Field("linux")
	c.Inside(at.Field("cgroup_parent"), linux.GetCgroupParent())
	for name := range linux.GetSysctls() {
		if !sysctlName.MatchString(name) {
			c.Fail(at.Field("sysctls").Key(name), "is not the name of a sysctl such as net.ipv4.ip_forward")
		}
	}
	out := &model.SandboxConfig{
		Metadata:     toSandboxMetadata(c, p.Field("metadata"), in.Metadata),
		Hostname:     in.Hostname,
		LogDirectory: in.LogDirectory,
		DNS:          toDNS(c, p.Field("dns_config"), in.DnsConfig),
		PortMappings: request.PortMappings(c.Check, p.Field("port_mappings"), in.PortMappings, protocols),
		Labels:       maps.Clone(in.Labels),
		Annotations:  maps.Clone(in.Annotations),
		CgroupParent: linux.GetCgroupParent(),
		Security:     toSandboxSecurity(c, at.Field("security_context"), linux.GetSecurityContext()),
		Sysctls:      maps.Clone(linux.GetSysctls()),
		Overhead:     toResources(c, at.Field("overhead"), linux.GetOverhead()),
		Resources:    toResources(c, at.Field("resources"), linux.GetResources()),
	}
	c.dialect.ReadSandbox(c.Check, p, in, out)
	return out
}

// fromSandboxConfig is the reverse, with what is deprecated in the fields that have taken its place.
func fromSandboxConfig(c *model.SandboxConfig) *api.PodSandboxConfig {
	out := &api.PodSandboxConfig{
		Metadata:     fromSandboxMetadata(c.Metadata),
		Hostname:     c.Hostname,
		LogDirectory: c.LogDirectory,
		Labels:       c.Labels,
		Annotations:  c.Annotations,
		Linux: &api.LinuxPodSandboxConfig{
			CgroupParent:    c.CgroupParent,
			SecurityContext: fromSandboxSecurity(c.Security),
			Sysctls:         c.Sysctls,
			Overhead:        fromResources(c.Overhead),
			Resources:       fromResources(c.Resources),
		},
	}
	if d := c.DNS; d != nil {
		out.DnsConfig = &api.DNSConfig{Servers: d.Servers, Searches: d.Searches, Options: d.Options}
	}
	for _, m := range c.PortMappings {
		out.PortMappings = append(out.PortMappings, &api.PortMapping{
			Protocol:      protocolsOut[m.Protocol],
			ContainerPort: m.ContainerPort,
			HostPort:      m.HostPort,
			HostIp:        m.HostIP,
		})
	}
	return out
}

func toSandboxMetadata(c *check, p path, m *api.PodSandboxMetadata) model.SandboxMetadata {
	if m == nil {
		c.Fail(p, "is required")
		return model.SandboxMetadata{}
	}
	c.Name(p.Field("name"), m.Name)
	c.Name(p.Field("uid"), m.Uid)
	c.Name(p.Field("namespace"), m.Namespace)
	return model.SandboxMetadata{Name: m.Name, UID: m.Uid, Namespace: m.Namespace, Attempt: m.Attempt}
}

func fromSandboxMetadata(m model.SandboxMetadata) *api.PodSandboxMetadata {
	return &api.PodSandboxMetadata{Name: m.Name, Uid: m.UID, Namespace: m.Namespace, Attempt: m.Attempt}
}

func toDNS(c *check, p path, d *api.DNSConfig) *model.DNS {
	if d == nil {
		return nil
	}
	searches := c.DNS(p, d)
	for i, s := range d.Options {
		c.Word(p.Field("options").At(i), s)
	}
	return &model.DNS{
		Servers:  slices.Clone(d.Servers),
		Searches: searches,
		Options:  slices.Clone(d.Options),
	}
}

// podCIDR checks a CIDR, or several with commas between them.
func podCIDR(c *check, p path, s string) {
	for part := range strings.SplitSeq(s, ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(part)); err != nil {
			c.Fail(p, "%q is not a CIDR such as 10.60.0.0/16", part)
		}
	}
}
