package v1

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func toSandboxConfig(c *check, p path, in *api.PodSandboxConfig) *model.SandboxConfig {
	if in == nil {
		c.fail(p, "is required")
		return nil
	}
	c.hostname(p.field("hostname"), in.Hostname)
	if in.LogDirectory != "" {
		c.absolute(p.field("log_directory"), in.LogDirectory)
		if hasDotDot(in.LogDirectory) {
			c.fail(p.field("log_directory"), "%q has .. in it", in.LogDirectory)
		}
	}
	c.keys(p.field("labels"), in.Labels)
	c.keys(p.field("annotations"), in.Annotations)
	linux, at := in.GetLinux(), p.field("linux")
	if hasDotDot(linux.GetCgroupParent()) {
		c.fail(at.field("cgroup_parent"), "%q has .. in it", linux.GetCgroupParent())
	}
	for name := range linux.GetSysctls() {
		if !sysctlName.MatchString(name) {
			c.fail(at.field("sysctls").key(name), "is not the name of a sysctl such as net.ipv4.ip_forward")
		}
	}
	return &model.SandboxConfig{
		Metadata:     toSandboxMetadata(c, p.field("metadata"), in.Metadata),
		Hostname:     in.Hostname,
		LogDirectory: in.LogDirectory,
		DNS:          toDNS(c, p.field("dns_config"), in.DnsConfig),
		PortMappings: toPortMappings(c, p.field("port_mappings"), in.PortMappings),
		Labels:       maps.Clone(in.Labels),
		Annotations:  maps.Clone(in.Annotations),
		CgroupParent: linux.GetCgroupParent(),
		Security:     toSandboxSecurity(c, at.field("security_context"), linux.GetSecurityContext()),
		Sysctls:      maps.Clone(linux.GetSysctls()),
		Overhead:     toResources(c, at.field("overhead"), linux.GetOverhead()),
		Resources:    toResources(c, at.field("resources"), linux.GetResources()),
	}
}

func toSandboxMetadata(c *check, p path, m *api.PodSandboxMetadata) model.SandboxMetadata {
	if m == nil {
		c.fail(p, "is required")
		return model.SandboxMetadata{}
	}
	c.name(p.field("name"), m.Name)
	c.name(p.field("uid"), m.Uid)
	c.name(p.field("namespace"), m.Namespace)
	return model.SandboxMetadata{Name: m.Name, UID: m.Uid, Namespace: m.Namespace, Attempt: m.Attempt}
}

func fromSandboxMetadata(m model.SandboxMetadata) *api.PodSandboxMetadata {
	return &api.PodSandboxMetadata{Name: m.Name, Uid: m.UID, Namespace: m.Namespace, Attempt: m.Attempt}
}

func toDNS(c *check, p path, d *api.DNSConfig) *model.DNS {
	if d == nil {
		return nil
	}
	for i, s := range d.Servers {
		if _, err := netip.ParseAddr(s); err != nil {
			c.fail(p.field("servers").at(i), "%q is no IP address", s)
		}
	}
	for i, s := range d.Searches {
		c.word(p.field("searches").at(i), s)
	}
	for i, s := range d.Options {
		c.word(p.field("options").at(i), s)
	}
	return &model.DNS{
		Servers:  slices.Clone(d.Servers),
		Searches: slices.Clone(d.Searches),
		Options:  slices.Clone(d.Options),
	}
}

func toPortMappings(c *check, p path, in []*api.PortMapping) []model.PortMapping {
	var out []model.PortMapping
	for i, m := range in {
		at := p.at(i)
		c.port(at.field("container_port"), m.GetContainerPort())
		if m.GetHostPort() != 0 {
			c.port(at.field("host_port"), m.GetHostPort())
		}
		if ip := m.GetHostIp(); ip != "" {
			if addr, err := netip.ParseAddr(ip); err != nil || addr.Zone() != "" {
				c.fail(at.field("host_ip"), "%q is no IP address", ip)
			}
		}
		out = append(out, model.PortMapping{
			Protocol:      protocols[m.GetProtocol()],
			ContainerPort: m.GetContainerPort(),
			HostPort:      m.GetHostPort(),
			HostIP:        m.GetHostIp(),
		})
	}
	return out
}

func (c *check) port(p path, port int32) {
	if port < 1 || port > 65535 {
		c.fail(p, "%d is not in 1..65535", port)
	}
}

// podCIDR checks a CIDR, or several with commas between them.
func (c *check) podCIDR(p path, s string) {
	for part := range strings.SplitSeq(s, ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(part)); err != nil {
			c.fail(p, "%q is no CIDR such as 10.88.0.0/16", part)
		}
	}
}
