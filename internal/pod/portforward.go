package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/audit"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/pod/record"
)

// lastWords is how long a client may be silent once the pod has ended its side of a forwarded connection. The whole
// connection is ended then, as containerd does: some clients wait for that, and never end their side themselves.
const lastWords = time.Second

// PortForward joins conn to a TCP port of a pod's loopback address until one side ends it. A pod with a sandbox
// container is reached at its own address, or else at its loopback address, which a sandbox with a network of its own
// does not have.
//
// An error is one of the connect. A connection that is cut off later, because the pod resets it for example, is reset
// for the client as well: a client such as kubectl takes an error for that of the whole port-forward, and ends it with
// all other connections.
func (m *Manager) PortForward(ctx context.Context, sandboxID string, port int32, conn io.ReadWriteCloser) (err error) {
	s, err := m.index.Sandbox(sandboxID)
	if err != nil {
		return err
	}
	r := s.Record()
	ended := m.auditor().sandbox(ctx, s.ID(), audit.Operation{Kind: audit.PortForward, Port: port})
	defer func() { ended(-1, err) }()
	if r.Phase != record.SandboxReady {
		return fmt.Errorf("forward port %d of pod sandbox %s: %w", port, record.ShortID(s.ID()), errSandboxNotReady)
	}
	if port < 1 || port > 65535 {
		return fmt.Errorf("forward port %d: it is not from 1 to 65535: %w", port, errdefs.ErrInvalidArgument)
	}
	var target *net.TCPConn
	switch {
	case r.SandboxContainer && len(r.IPs) > 0:
		// The sandbox may have a network of its own, which no socket of the kernel's is in.
		if target, err = dialAddresses(ctx, r.IPs, uint16(port)); err != nil {
			inside, lerr := dialLoopback(ctx, m.dirs.Namespaces(s.ID()).Path(namespace.Network), uint16(port))
			if lerr == nil {
				target, err = inside, nil
			}
		}
	case r.NodeNetwork():
		target, err = dialLoopback(ctx, "", uint16(port))
	default:
		target, err = dialLoopback(ctx, m.dirs.Namespaces(s.ID()).Path(namespace.Network), uint16(port))
	}
	if err != nil {
		return fmt.Errorf("forward port %d of pod sandbox %s: %w: %w", port, record.ShortID(s.ID()), err,
			errdefs.ErrUnavailable)
	}
	defer target.Close()
	stop := context.AfterFunc(ctx, func() { target.Close() })
	defer stop()

	client := &counted{Reader: conn}
	toPod := make(chan struct{})
	var reset atomic.Bool // a write has learned that the pod has reset the connection: a read finds just its end then
	go func() {
		defer close(toPod)
		_, err := io.Copy(target, client)
		reset.Store(errors.Is(err, unix.ECONNRESET))
		_ = target.CloseWrite() // the other direction may go on
	}()
	_, err = io.Copy(conn, target)
	whole := err == nil && !reset.Load()
	// The pod has said all that it will; the client learns it and may still speak.
	if half, ok := conn.(interface{ CloseWrite() error }); ok && whole {
		_ = half.CloseWrite()
		client.waitForSilence(toPod)
	}
	if cut, ok := conn.(interface{ Reset() error }); ok && !whole {
		_ = cut.Reset()
	}
	conn.Close()
	target.Close()
	<-toPod
	return ctx.Err()
}

// ReserveStreams keeps the port of the streaming server, at this address, from pods.
func (m *Manager) ReserveStreams(address string) error {
	server, err := netip.ParseAddrPort(address)
	if err == nil {
		m.parts.Reserve(server)
	}
	return err
}

// IsHostPort tells whether TCP connections to a port of the node may lead to a pod, now or once StartSandbox has
// brought the pod back: after a reboot all pods are broken. Those to a pod that is being removed may do so too, until
// CNI plugins have removed its network.
func (m *Manager) IsHostPort(port uint16) bool {
	for _, s := range m.index.Sandboxes() {
		r := s.Record()
		if r.Phase == record.SandboxStopped || r.NodeNetwork() {
			continue
		}
		for _, p := range r.Config.PortMappings {
			if p.HostPort == int32(port) && p.Protocol == model.TCP {
				return true
			}
		}
	}
	return false
}

// counted counts what is read.
type counted struct {
	io.Reader
	bytes atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// waitForSilence returns when ended is closed, or when nothing has been read for as long as lastWords.
func (c *counted) waitForSilence(ended <-chan struct{}) {
	for before := c.bytes.Load(); ; {
		select {
		case <-ended:
			return
		case <-time.After(lastWords):
		}
		now := c.bytes.Load()
		if now == before {
			return
		}
		before = now
	}
}
