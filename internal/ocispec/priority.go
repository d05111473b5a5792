package ocispec

import (
	"math"
	"net"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
	"berth/internal/model"
)

// netPriority gives a container's traffic its priority on every interface of the node. The kernel's controller knows
// these alone: traffic that leaves another network namespace has lost its socket, and with it its cgroup,
// when it gets there.
func (b *builder) netPriority() error {
	p := b.config.NetPriority
	switch {
	case p == 0:
		return nil
	case p < 0 || p > math.MaxUint32:
		return model.FieldContainerNetPriority.Wrong(invalid("%d is not in 0 to %d", p, uint32(math.MaxUint32)))
	case b.host.Cgroups.Version == cgroup.V2:
		return model.FieldContainerNetPriority.Wrong(unable("this host uses cgroup v2, which has no net_prio controller"))
	case !b.host.Cgroups.Has("net_prio"):
		return model.FieldContainerNetPriority.Wrong(unable("the net_prio controller is not mounted on this host"))
	case b.in.Namespaces.Network != "":
		return model.FieldContainerNetPriority.Wrong(
			unable("the net_prio controller knows the node's interfaces alone, and this pod has a network of its own"))
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return model.FieldContainerNetPriority.Wrong(unable("%v", err))
	}
	network := &specs.LinuxNetwork{}
	for _, i := range interfaces {
		network.Priorities = append(network.Priorities, specs.LinuxInterfacePriority{Name: i.Name, Priority: uint32(p)})
	}
	b.spec.Linux.Resources.Network = network
	return nil
}
