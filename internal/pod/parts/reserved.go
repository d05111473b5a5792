package parts

import (
	"fmt"
	"net/netip"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// Reserve keeps the port of a TCP server of berthd from pods, whatever makes their host ports: rules for such a pod
// would lead the clients of the server to it. It is called before pods are made.
func (p *Maker) Reserve(server netip.AddrPort) { p.reserved.Store(&server) }

// checkPorts refuses a host port that Reserve has kept, with errdefs.ErrFailedPrecondition.
func (p *Maker) checkPorts(ports []model.PortMapping) error {
	server := p.reserved.Load()
	if server == nil {
		return nil
	}
	for _, m := range ports {
		if m.Protocol == model.TCP && m.HostPort == int32(server.Port()) && leadsTo(m.HostIP, server.Addr()) {
			return fmt.Errorf("host port %d/tcp is in use by berthd's streaming server at %s: %w", m.HostPort, server,
				errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// leadsTo tells whether a host port at a host IP, where it has one, takes connections to a server's address.
func leadsTo(hostIP string, server netip.Addr) bool {
	ip, err := netip.ParseAddr(hostIP)
	return err != nil || ip.IsUnspecified() || !server.IsLoopback() || ip.Unmap() == server.Unmap()
}
