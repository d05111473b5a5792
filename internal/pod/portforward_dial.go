package pod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/namespace"
)

// dialTimeout bounds the connection to a port of a pod: both ends are on this machine.
const dialTimeout = 10 * time.Second

// dialLoopback connects to a TCP port of the loopback of the network namespace that is pinned at path, IPv4 first. Only
// the sockets are made on a thread that is in the namespace. A program that accepts no connections would hold such a
// thread for each that waits, and Go ends a process that has 10,000 of them.
func dialLoopback(ctx context.Context, path string, port uint16) (*net.TCPConn, error) {
	var errs []error
	for _, host := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		at := netip.AddrPortFrom(host, port)
		conn, err := dialTCP(ctx, path, at)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("connect to %s: %w", at, err))
	}
	return nil, errors.Join(errs...)
}

// dialAddresses connects to a TCP port of one of a pod's addresses, from the node.
func dialAddresses(ctx context.Context, addresses []string, port uint16) (*net.TCPConn, error) {
	var errs []error
	dialer := net.Dialer{Timeout: dialTimeout}
	for _, address := range addresses {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(int(port))))
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func dialTCP(ctx context.Context, path string, at netip.AddrPort) (*net.TCPConn, error) {
	var family int
	var to unix.Sockaddr
	if host := at.Addr(); host.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: host.As4()}
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: host.As16()}
	}
	var socket *os.File
	err := namespace.Do(path, func() error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		socket = os.NewFile(uintptr(fd), at.String())
		return nil
	})
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(socket) // a copy
	socket.Close()
	if err != nil {
		return nil, err
	}
	tcp := conn.(*net.TCPConn)
	if err := connect(ctx, tcp, to); err != nil {
		tcp.Close()
		return nil, err
	}
	return tcp, nil
}

// connect connects a socket that does not block.
func connect(ctx context.Context, tcp *net.TCPConn, to unix.Sockaddr) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	if err := tcp.SetWriteDeadline(time.Now().Add(dialTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	begun := false
	var failed error
	// The function is called again when the socket can be written to, which is when it is connected, or has failed to.
	err = raw.Write(func(fd uintptr) bool {
		if !begun {
			begun = true
			failed = unix.Connect(int(fd), to)
			return failed != unix.EINPROGRESS && failed != unix.EINTR
		}
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			failed = err
		case code != 0:
			failed = unix.Errno(code)
		default:
			// It may be called too early.
			_, failed = unix.Getpeername(int(fd))
			return failed != unix.ENOTCONN
		}
		return true
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return err // the time is over
	}
	if failed != nil {
		return os.NewSyscallError("connect", failed)
	}
	return tcp.SetWriteDeadline(time.Time{})
}
