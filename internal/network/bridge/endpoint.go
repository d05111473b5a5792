package bridge

import (
	"fmt"
	"net/netip"
	"strconv"

	"berth/internal/model"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Endpoint is a pod as the bridge sees it.
type Endpoint struct {
	ID    string
	Pod   string // namespace/name, for messages
	NetNS string // path of the pinned network namespace
	Ports []model.PortMapping
	// Addresses are those that the caller knows it to have. They count where the bridge has lost its record,
	// and the kernel does not say others.
	Addresses []netip.Addr
	// Sysctls are set when the watch or Reconcile makes an interface again that was lost. The caller sets those of the
	// first one.
	Sysctls map[string]string
}

// hostPort is one key of the table's maps: packets of a protocol to a port of an address go to a port of the pod.
// An unspecified host address stands for every local address of its family.
type hostPort struct {
	proto  uint8
	host   netip.Addr
	port   uint16
	target netip.AddrPort
}

func (p hostPort) String() string {
	where := strconv.Itoa(int(p.port)) + "/" + protocolName(p.proto)
	if p.host.IsUnspecified() {
		return where
	}
	return where + " on " + p.host.String()
}

// portIndex finds, for a host port, another one that overlaps it: a packet could be meant for both. A pod may have tens
// of thousands of host ports, and they are looked for under a lock, so they are not compared one by one.
type portIndex map[portKey]hostPort

// portKey is what packets to a host port have in common. A host that is not valid stands for any host of the family.
type portKey struct {
	proto uint8
	port  uint16
	v4    bool
	host  netip.Addr
}

func (p hostPort) at(host netip.Addr) portKey { return portKey{p.proto, p.port, p.host.Is4(), host} }

func (x portIndex) add(p hostPort) { x[p.at(p.host)], x[p.at(netip.Addr{})] = p, p }

func (x portIndex) overlap(p hostPort) (other hostPort, found bool) {
	if p.host.IsUnspecified() {
		other, found = x[p.at(netip.Addr{})]
		return other, found
	}
	if other, found = x[p.at(p.host)]; found {
		return other, true
	}
	everywhere := netip.IPv6Unspecified()
	if p.host.Is4() {
		everywhere = netip.IPv4Unspecified()
	}
	other, found = x[p.at(everywhere)]
	return other, found
}

var protocols = map[model.Protocol]uint8{
	"":         unix.IPPROTO_TCP, // the zero value of the CRI's enumeration
	model.TCP:  unix.IPPROTO_TCP,
	model.UDP:  unix.IPPROTO_UDP,
	model.SCTP: unix.IPPROTO_SCTP,
}

func protocolName(number uint8) string {
	for name, n := range protocols {
		if n == number && name != "" {
			return string(name)
		}
	}
	return strconv.Itoa(int(number))
}

// ValidatePorts says what is wrong with a pod's port mappings: ErrInvalidArgument, naming the field.
func ValidatePorts(ports []model.PortMapping) error {
	for i, p := range ports {
		bad := func(format string, args ...any) error {
			return fmt.Errorf("port mapping %d: %s: %w", i, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
		}
		if _, ok := protocols[p.Protocol]; !ok {
			return bad("protocol %q is not one of tcp, udp, sctp", p.Protocol)
		}
		if p.HostPort < 0 || p.HostPort > 65535 {
			return bad("host port %d is not between 0 and 65535", p.HostPort)
		}
		if p.ContainerPort < 0 || p.ContainerPort > 65535 || p.HostPort > 0 && p.ContainerPort == 0 {
			return bad("container port %d is not between 1 and 65535", p.ContainerPort)
		}
		if p.HostIP != "" {
			addr, err := netip.ParseAddr(p.HostIP)
			if err != nil || addr.Zone() != "" {
				return bad("host IP %q is not an IP address", p.HostIP)
			}
		}
	}
	return nil
}

// hostPorts expands port mappings, which are valid, to the keys that they take for a pod with these addresses. No host
// IP means every address of both families.
func hostPorts(ports []model.PortMapping, addrs []netip.Addr) ([]hostPort, error) {
	var all []hostPort
	index := make(portIndex, 2*len(ports)*len(addrs))
	for i, p := range ports {
		if p.HostPort == 0 {
			continue
		}
		var host netip.Addr
		if p.HostIP != "" {
			host = netip.MustParseAddr(p.HostIP).Unmap()
		}
		matched := false
		for _, addr := range addrs {
			key := hostPort{
				proto: protocols[p.Protocol], host: host, port: uint16(p.HostPort),
				target: netip.AddrPortFrom(addr, uint16(p.ContainerPort)),
			}
			switch {
			case !host.IsValid() && addr.Is4():
				key.host = netip.IPv4Unspecified()
			case !host.IsValid():
				key.host = netip.IPv6Unspecified()
			case host.Is4() != addr.Is4():
				continue
			}
			matched = true
			other, twice := index.overlap(key)
			if twice && other != key {
				return nil, fmt.Errorf("port mapping %d: host port %s is mapped twice: %w", i, key,
					errdefs.ErrInvalidArgument)
			}
			if !twice {
				index.add(key)
				all = append(all, key)
			}
		}
		if !matched {
			return nil, fmt.Errorf("port mapping %d: host IP %s: the pod has no address of that family: %w", i, host,
				errdefs.ErrInvalidArgument)
		}
	}
	return all, nil
}
