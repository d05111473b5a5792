package daemon

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/logpump"
	"berth/internal/keeper/protocol"
)

// session is one client's connection for descriptors.
type session struct {
	id     string
	escrow bool
	conn   *protocol.Conn

	mu      sync.Mutex
	queue   []queued
	sending bool // a packet that is not in the queue any more
	wake    chan struct{}
	closed  bool
}

// queued is a packet that is to be sent. The packet's descriptors are the queue's.
type queued struct {
	packet *protocol.Packet
	done   chan error // gets nil when it has been sent, or why it will never be
}

const (
	// helloWait bounds how long a connection may be silent before it says who it is.
	helloWait = 5 * time.Second
	// deliveryWait is how long an RPC waits for the files it names, and files for their RPC.
	deliveryWait = 10 * time.Second
	// returnWait is how long a client may take to come back before what it attached is cut off.
	returnWait = 2 * time.Second
	// maxQueue bounds what a session that takes nothing holds; it is closed then and starts anew.
	maxQueue = 4096
)

// sessions are the clients that are connected, by the name that each gives itself.
type sessions struct {
	mu   sync.Mutex
	byID map[string]*session
}

// add returns the session that had this name before; nil: none had.
func (t *sessions) add(ses *session) (old *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old = t.byID[ses.id]
	t.byID[ses.id] = ses
	return old
}

func (t *sessions) remove(ses *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[ses.id] == ses {
		delete(t.byID, ses.id)
	}
}

// get is nil where there is no session of this name.
func (t *sessions) get(id string) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

func (t *sessions) all() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

func (s *Server) acceptSessions() {
	stop := s.gate.Stopped()
	for {
		c, err := s.sockets.fds.AcceptUnix()
		if err != nil {
			select {
			case <-stop:
				return
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.log.Error("accept", "socket", protocol.FDsSocket, "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go s.serveSession(c)
	}
}

func (s *Server) serveSession(c *net.UnixConn) {
	defer c.Close()
	if err := protocol.PeerAllowed(c); err != nil {
		s.log.Warn("client refused", "error", err)
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
	ses := &session{id: hello.Session, escrow: hello.Escrow, conn: conn, wake: make(chan struct{}, 1), sending: true}
	// It is there before its client can call: what those calls send waits in the queue, behind the welcome.
	old := s.sessions.add(ses)
	if old != nil {
		old.close()
	}
	if err := conn.Send(&protocol.Packet{Kind: protocol.Welcome, Generation: s.identity.generation}); err != nil {
		ses.close()
	}
	ses.mu.Lock()
	ses.sending = false
	ses.mu.Unlock()
	go ses.send()
	if ses.escrow {
		s.escrow.putAll(ses, s.containers)
	}
	for {
		p, err := conn.Receive()
		if err != nil {
			break
		}
		if p.Kind == protocol.Files && p.Token != "" {
			s.deliveries.deliver(p)
		} else {
			p.CloseFiles()
		}
	}
	ses.close()
	s.sessions.remove(ses)
	time.AfterFunc(returnWait, func() { s.abandon(ses.id) })
}

// push sends a packet, or queues it if the client does not take it at once; its descriptors are the session's from now
// on. The channel gets nil when it has been sent, or why it will never be.
func (ses *session) push(p *protocol.Packet) <-chan error {
	q := queued{p, make(chan error, 1)}
	ses.mu.Lock()
	// Without a switch to another goroutine and back: an exec waits until it is in escrow.
	if !ses.closed && !ses.sending && len(ses.queue) == 0 {
		if sent, err := ses.conn.TrySend(p); sent || err != nil {
			ses.mu.Unlock()
			q.drop(err)
			if err != nil {
				ses.close()
			}
			return q.done
		}
	}
	if ses.closed || len(ses.queue) >= maxQueue {
		closed := ses.closed
		ses.mu.Unlock()
		q.drop(errGone)
		if !closed {
			ses.close()
		}
		return q.done
	}
	ses.queue = append(ses.queue, q)
	ses.mu.Unlock()
	select {
	case ses.wake <- struct{}{}:
	default:
	}
	return q.done
}

// drop is the end of a packet, sent or not.
func (q queued) drop(err error) {
	q.packet.CloseFiles()
	q.done <- err
}

// errGone is the error for a packet that is not sent, since its session is over.
var errGone = errors.New("the client has gone, or takes nothing")

func (ses *session) send() {
	for range ses.wake {
		for {
			ses.mu.Lock()
			ses.sending = false
			if ses.closed {
				ses.mu.Unlock()
				return
			}
			if len(ses.queue) == 0 {
				ses.queue = nil
				ses.mu.Unlock()
				break
			}
			q := ses.queue[0]
			ses.queue = ses.queue[1:]
			ses.sending = true
			ses.mu.Unlock()
			err := ses.conn.Send(q.packet)
			q.drop(err)
			if err != nil {
				ses.close()
				return
			}
		}
	}
}

// drained waits until the queue has been sent.
func (ses *session) drained(limit time.Duration) {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		ses.mu.Lock()
		empty := ses.closed || len(ses.queue) == 0 && !ses.sending
		ses.mu.Unlock()
		if empty {
			return
		}
	}
}

func (ses *session) close() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.closed {
		return
	}
	ses.closed = true
	ses.conn.Close()
	for _, q := range ses.queue {
		q.drop(errGone)
	}
	ses.queue = nil
	select {
	case ses.wake <- struct{}{}:
	default:
	}
}

func closeAll(m map[protocol.Role]int) {
	for _, fd := range m {
		unix.Close(fd)
	}
}

// file wraps a descriptor, nil if there is none.
func file(m map[protocol.Role]int, r protocol.Role) *os.File {
	fd, ok := m[r]
	if !ok {
		return nil
	}
	return os.NewFile(uintptr(fd), string(r))
}

// abandon cuts off what a client attached that has not come back.
func (s *Server) abandon(session string) {
	if s.sessions.get(session) != nil {
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
func (l *leftClients) keep(log *logpump.Log, clients map[string]string, connected *sessions) {
	for id, session := range clients {
		if connected.get(session) == nil {
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
