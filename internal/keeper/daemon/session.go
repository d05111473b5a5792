package daemon

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/logpump"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/session"
)

const (
	// helloWait bounds how long a connection may be silent before it says who it is.
	helloWait = 5 * time.Second
	// returnWait is how long a client may take to come back before what it attached is cut off.
	returnWait = 2 * time.Second
)

func (s *Server) acceptSessions() {
	for {
		c, err := s.sockets.fds.AcceptUnix()
		if err != nil {
			select {
			case <-s.gate.Stopped(): // of now: the gate may have been closed before, for an upgrade that was refused
				return
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.log.Error("accept a client's connection for descriptors", "socket", protocol.FDsSocket, "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go s.serveSession(c)
	}
}

func (s *Server) serveSession(c *net.UnixConn) {
	defer c.Close()
	if err := protocol.PeerAllowed(c); err != nil {
		s.log.Warn("a client of the keeper is refused", "error", err)
		return
	}
	conn := protocol.NewConn(c)
	_ = conn.SetDeadline(time.Now().Add(helloWait))
	hello, err := conn.Receive()
	if err != nil {
		return
	}
	hello.CloseFiles()
	if hello.Kind != protocol.Hello || hello.Session == "" {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	ses := session.New(hello, conn)
	// It is there before its client can call: what those calls send waits in the queue, behind the welcome.
	old := s.sessions.Add(ses)
	if old != nil {
		old.Close()
	}
	if err := conn.Send(&protocol.Packet{Kind: protocol.Welcome, Generation: s.identity.generation}); err != nil {
		ses.Close()
	}
	ses.Begin()
	if ses.Escrow {
		s.escrow.putAll(ses, s.containers)
	}
	for {
		p, err := conn.Receive()
		if err != nil {
			break
		}
		if p.Kind == protocol.Files && p.Token != "" {
			s.deliveries.Deliver(p)
		} else {
			p.CloseFiles()
		}
	}
	ses.Close()
	s.sessions.Remove(ses)
	time.AfterFunc(returnWait, func() { s.abandon(ses.ID) })
}

func closeAll(m map[protocol.Role]int) {
	for _, fd := range m {
		unix.Close(fd)
	}
}

// file wraps a descriptor and takes it out of the map; nil: there is none.
func file(m map[protocol.Role]int, r protocol.Role) *os.File {
	fd, ok := m[r]
	if !ok {
		return nil
	}
	delete(m, r)
	return os.NewFile(uintptr(fd), string(r))
}

// abandon cuts off what a client attached that has not come back.
func (s *Server) abandon(session string) {
	if s.gate.Begin() != nil {
		// The next program does it, unless the upgrade fails: it is given the descriptors of what is attached.
		time.AfterFunc(returnWait, func() { s.abandon(session) })
		return
	}
	defer s.gate.End()
	if s.sessions.Get(session) != nil {
		return
	}
	for _, c := range s.containers.all() {
		c.mu.Lock()
		var ids []string
		for id, ses := range c.clients {
			if ses == session {
				ids = append(ids, id)
			}
		}
		held := c.record.Checkpoint != "" && c.record.CheckpointBy == session
		c.mu.Unlock()
		if held {
			_ = s.thaw(c, "")
		}
		for _, id := range ids {
			_ = c.detach(id)
		}
	}
	s.left.forget(session)
}

// leftClient is a client that was attached to a container when that was removed. It may still have to be told why it
// was cut off.
type leftClient struct {
	log     *logpump.Log
	session string
}

// leftClients are those clients, by attach ID.
type leftClients struct {
	mu   sync.Mutex
	byID map[string]leftClient
}

// keep keeps what clients of a container that is being removed may ask for. clients are the names of their sessions, by
// attach ID.
func (l *leftClients) keep(log *logpump.Log, clients map[string]string, connected *session.Table) {
	for id, session := range clients {
		if connected.Get(session) == nil {
			continue // nobody comes for it
		}
		l.mu.Lock()
		l.byID[id] = leftClient{log, session}
		l.mu.Unlock()
	}
}

// take is the log of a removed container that a client was attached to; nil: there is none.
func (l *leftClients) take(attachID string) *logpump.Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	log := l.byID[attachID].log
	delete(l.byID, attachID)
	return log
}

// forget drops what is kept for a session.
func (l *leftClients) forget(session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.byID, func(_ string, c leftClient) bool { return c.session == session })
}

// detach cuts off one attached client. Where its input was the container's only one ever, the container reads the end.
// The error is ErrResourceExhausted and tells why the client had been cut off before, or ErrNotFound: this keeper has
// never known it.
func (c *container) detach(id string) error {
	c.mu.Lock()
	_, brought := c.owners[id]
	_, known := c.clients[id]
	delete(c.owners, id)
	delete(c.clients, id)
	once := c.record.StdinOnce && !c.record.Terminal
	out := c.out
	c.mu.Unlock()
	var lost error
	if out != nil {
		lost = out.Detach(id)
	}
	if brought && once {
		c.closeStdin()
	}
	if !known {
		return fmt.Errorf("client %s is not attached: %w", id, errdefs.ErrNotFound)
	}
	return detached(lost)
}

// detached gives the reason why a client was cut off its class; nil: it was not.
func detached(lost error) error {
	if lost == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", lost, errdefs.ErrResourceExhausted)
}
