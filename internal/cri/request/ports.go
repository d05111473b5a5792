package request

import "berth/internal/model"

// PortMapping is a port of a pod, as each version of the interface has it. E is the version's enumeration of protocols.
type PortMapping[E comparable] interface {
	GetProtocol() E
	GetContainerPort() int32
	GetHostPort() int32
	GetHostIp() string
}

// PortMappings checks and translates the port mappings at p. protocols has the model's name of each protocol.
func PortMappings[E comparable, M PortMapping[E]](
	c *Check, p Path, in []M, protocols map[E]model.Protocol,
) []model.PortMapping {
	var out []model.PortMapping
	for i, m := range in {
		c.PortMapping(p.At(i), m)
		out = append(out, model.PortMapping{
			Protocol:      protocols[m.GetProtocol()],
			ContainerPort: m.GetContainerPort(),
			HostPort:      m.GetHostPort(),
			HostIP:        m.GetHostIp(),
		})
	}
	return out
}
