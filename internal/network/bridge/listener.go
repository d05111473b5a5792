package bridge

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	tcpListen = 10 // TCP_LISTEN of net/tcp_states.h
	udpOpen   = 7  // TCP_CLOSE: a UDP socket that is not connected
)

// checkListeners refuses host ports that a process of the host serves. The rules would take the port from it:
// a pod that asks for port 22 would shut the node's ssh, and one that asks for port 53 its resolver on 127.0.0.53.
// A process that opens the port later is not noticed.
func checkListeners(ports []hostPort) error {
	for _, p := range ports {
		taken, err := listening(p)
		if err != nil {
			return fmt.Errorf("host port %s: %w", p, err)
		}
		if taken {
			return fmt.Errorf("host port %s is in use by a process of the host (ss -lnp shows it): %w", p,
				errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

func listening(p hostPort) (bool, error) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if p.host.Is6() {
		family = unix.AF_INET6
	}
	if p.proto == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, int(p.proto))
	if err != nil {
		// A kernel without the protocol or the family has no such listeners.
		if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
			return false, nil
		}
		return false, err
	}
	defer unix.Close(fd)
	var addr unix.Sockaddr = &unix.SockaddrInet4{Port: int(p.port), Addr: as4(p)}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return false, err
		}
		addr = &unix.SockaddrInet6{Port: int(p.port), Addr: p.host.As16()}
	}
	if kind == unix.SOCK_STREAM {
		// Connections in TIME_WAIT do not matter.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return false, err
		}
	}
	err = unix.Bind(fd, addr)
	if !errors.Is(err, unix.EADDRINUSE) {
		return false, nil // free, or an address that the node does not have yet
	}
	return hasListener(p, uint8(family)), nil
}

func as4(p hostPort) (a [4]byte) {
	if p.host.Is4() {
		a = p.host.As4()
	}
	return a
}

// hasListener tells a listener from a client's socket that happens to have the port. It is asked once a bind
// has failed.
func hasListener(p hostPort, family uint8) bool {
	var sockets []*netlink.Socket
	open := uint8(tcpListen)
	for _, f := range []uint8{unix.AF_INET, unix.AF_INET6} { // a socket of IPv6 may serve IPv4
		if f == unix.AF_INET && family == unix.AF_INET6 {
			continue
		}
		var some []*netlink.Socket
		var err error
		switch p.proto {
		case unix.IPPROTO_TCP:
			some, err = netlink.SocketDiagTCP(f)
		case unix.IPPROTO_UDP:
			open = udpOpen
			some, err = netlink.SocketDiagUDP(f)
		default:
			return true
		}
		if err != nil {
			return true
		}
		sockets = append(sockets, some...)
	}
	for _, s := range sockets {
		if s.State == open && s.ID.SourcePort == p.port {
			return true
		}
	}
	return false
}
