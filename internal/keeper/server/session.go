package server

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
	"berth/internal/keeper/wire"
)

// session is one client's connection for descriptors.
type session struct {
	id      string
	custody bool
	conn    *wire.Conn

	mu      sync.Mutex
	queue   []queued
	sending bool // a packet that is not in the queue any more
	wake    chan struct{}
	closed  bool
}

// queued is what is to be sent. The packet's descriptors are the queue's.
type queued struct {
	packet *wire.Packet
	done   chan error // gets nil when it has been sent, or why it will never be
}

// delivery is a set of files that an RPC is to fetch under a token.
type delivery struct {
	ready  chan struct{}
	packet *wire.Packet
	over   bool // the call has gone; what still comes is closed
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

func (s *Server) acceptSessions() {
	stop := s.stopped()
	for {
		c, err := s.fdsListener.AcceptUnix()
		if err != nil {
			select {
			case <-stop:
				return
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.log.Error("accept", "socket", wire.FDsSocket, "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go s.serveSession(c)
	}
}

func (s *Server) serveSession(c *net.UnixConn) {
	defer c.Close()
	if err := wire.PeerAllowed(c); err != nil {
		s.log.Warn("client refused", "error", err)
		return
	}
	conn := wire.NewConn(c)
	_ = conn.SetDeadline(time.Now().Add(helloWait))
	hello, err := conn.Receive()
	if err != nil {
		return
	}
	hello.CloseFiles()
	if hello.Kind != wire.Hello || hello.Session == "" {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	ses := &session{id: hello.Session, custody: hello.Custody, conn: conn, wake: make(chan struct{}, 1), sending: true}
	// It is there before its client can call: what those calls send waits in the queue, behind the welcome.
	s.mu.Lock()
	old := s.sessions[ses.id]
	s.sessions[ses.id] = ses
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
	if err := conn.Send(&wire.Packet{Kind: wire.Welcome, Generation: s.generation}); err != nil {
		ses.close()
	}
	ses.mu.Lock()
	ses.sending = false
	ses.mu.Unlock()
	go ses.send()
	if ses.custody {
		s.giveAll(ses)
	}
	for {
		p, err := conn.Receive()
		if err != nil {
			break
		}
		if p.Kind == wire.Files && p.Token != "" {
			s.deliver(p)
		} else {
			p.CloseFiles()
		}
	}
	ses.close()
	s.mu.Lock()
	if s.sessions[ses.id] == ses {
		delete(s.sessions, ses.id)
	}
	s.mu.Unlock()
	time.AfterFunc(returnWait, func() { s.abandon(ses.id) })
}

// push sends a packet, or queues it if the client does not take it at once; its descriptors are the session's from now
// on. The channel gets nil when it has been sent, or why it will never be.
func (ses *session) push(p *wire.Packet) <-chan error {
	q := queued{p, make(chan error, 1)}
	ses.mu.Lock()
	// Without a switch to another goroutine and back: an exec waits until it is in custody.
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

// errGone is why a packet is not sent: its session is over.
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

func (s *Server) session(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// expect finds or makes the place where the files of a token arrive.
func (s *Server) expect(token string) *delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.files[token]
	if d == nil {
		d = &delivery{ready: make(chan struct{})}
		s.files[token] = d
		time.AfterFunc(2*deliveryWait, func() {
			s.discard(token)
			s.mu.Lock()
			delete(s.files, token)
			s.mu.Unlock()
		})
	}
	return d
}

func (s *Server) deliver(p *wire.Packet) {
	d := s.expect(p.Token)
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.packet != nil || d.over {
		p.CloseFiles()
		return
	}
	d.packet = p
	close(d.ready)
}

// discard closes the files of a token that nobody has taken or will take: somebody may wait for the end of a pipe that
// they hold open. A call discards its token when it returns.
func (s *Server) discard(token string) {
	if token == "" {
		return
	}
	d := s.expect(token)
	s.mu.Lock()
	p := d.packet
	d.packet, d.over = nil, true
	s.mu.Unlock()
	if p != nil {
		p.CloseFiles()
	}
}

// take fetches the files of a token, by role. The caller owns the descriptors.
func (s *Server) take(token string) (map[wire.Role]int, error) {
	if token == "" {
		return nil, nil
	}
	d := s.expect(token)
	timeout := time.NewTimer(deliveryWait)
	defer timeout.Stop()
	select {
	case <-d.ready:
	case <-timeout.C:
		return nil, fmt.Errorf("files of the call did not arrive: %w", errdefs.ErrUnavailable)
	case <-s.stopped():
		return nil, errUpgrading
	}
	s.mu.Lock()
	p := d.packet
	d.packet, d.over = nil, true
	s.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("files of the call were taken before: %w", errdefs.ErrInvalidArgument)
	}
	if p.Cut {
		return nil, fmt.Errorf("the keeper has no room for the files of the call (RLIMIT_NOFILE): %w", errdefs.ErrResourceExhausted)
	}
	if len(p.FDs) != len(p.Roles) {
		p.CloseFiles()
		return nil, fmt.Errorf("%d files with %d roles: %w", len(p.FDs), len(p.Roles), errdefs.ErrInvalidArgument)
	}
	m := map[wire.Role]int{}
	for i, r := range p.Roles {
		if _, ok := m[r]; ok {
			unix.Close(p.FDs[i])
			continue
		}
		m[r] = p.FDs[i]
	}
	return m, nil
}

func closeAll(m map[wire.Role]int) {
	for _, fd := range m {
		unix.Close(fd)
	}
}

// file wraps a descriptor, nil if there is none.
func file(m map[wire.Role]int, r wire.Role) *os.File {
	fd, ok := m[r]
	if !ok {
		return nil
	}
	return os.NewFile(uintptr(fd), string(r))
}

// abandon cuts off what a client attached that has not come back.
func (s *Server) abandon(session string) {
	if s.session(session) != nil {
		return
	}
	for _, c := range s.all() {
		c.mu.Lock()
		var ids []string
		for id, ses := range c.clients {
			if ses == session {
				ids = append(ids, id)
			}
		}
		held := c.row.Checkpoint != "" && c.row.CheckpointBy == session
		c.mu.Unlock()
		if held {
			_ = s.goOn(c, "")
		}
		for _, id := range ids {
			_ = c.detach(id)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.left, func(_ string, l leftClient) bool { return l.session == session })
}

// leftClient is a client that was attached to a container when that was removed. It may still have to be told why it
// was cut off.
type leftClient struct {
	log     *logpump.Log
	session string
}

// keepLeft keeps what clients of a container that is being removed may ask for, by attach ID and session. The caller
// holds the container's mutex.
func (s *Server) keepLeft(log *logpump.Log, clients map[string]string) {
	for id, session := range clients {
		if s.session(session) == nil {
			continue // nobody comes for it
		}
		s.mu.Lock()
		s.left[id] = leftClient{log, session}
		s.mu.Unlock()
	}
}

// takeLeft is the log of a removed container that a client was attached to; nil: there is none.
func (s *Server) takeLeft(attachID string) *logpump.Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.left[attachID].log
	delete(s.left, attachID)
	return log
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
	once := c.row.StdinOnce && !c.row.Terminal
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
