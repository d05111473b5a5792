// Package session has the clients that exchange descriptors with the keeper: the queue of packets of each client, and
// the files that clients send for their calls.
package session

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"berth/internal/keeper/protocol"
)

// Session is one client's connection for descriptors.
type Session struct {
	ID     string
	Escrow bool // its client holds things in escrow
	conn   *protocol.Conn

	mu      sync.Mutex
	queue   []queued
	sending bool // a packet that is not in the queue any more
	wake    chan struct{}
	closed  bool
}

// New is the session of a client that has said who it is. What is pushed waits in the queue until Begin.
func New(hello *protocol.Packet, conn *protocol.Conn) *Session {
	return &Session{ID: hello.Session, Escrow: hello.Escrow, conn: conn, wake: make(chan struct{}, 1), sending: true}
}

// Begin sends what is in the queue, and what is pushed from now on.
func (s *Session) Begin() {
	s.mu.Lock()
	s.sending = false
	s.mu.Unlock()
	go s.send()
}

// Waiting is how many packets are to be sent.
func (s *Session) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.queue)
	if s.sending {
		n++
	}
	return n
}

// queued is a packet that is to be sent. The packet's descriptors are the queue's.
type queued struct {
	packet *protocol.Packet
	done   chan error // gets nil when it has been sent, or why it will never be
}

// maxQueue bounds what a session that takes nothing holds; it is closed then and starts anew.
const maxQueue = 4096

// Table has the clients that are connected, by the name that each gives itself.
type Table struct {
	mu   sync.Mutex
	byID map[string]*Session
}

// NewTable is a table without sessions.
func NewTable() *Table { return &Table{byID: map[string]*Session{}} }

// Add returns the session that had this name before; nil: none had.
func (t *Table) Add(s *Session) (old *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old = t.byID[s.ID]
	t.byID[s.ID] = s
	return old
}

// Remove drops a session, unless another has its name by now.
func (t *Table) Remove(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[s.ID] == s {
		delete(t.byID, s.ID)
	}
}

// Get is nil where there is no session of this name.
func (t *Table) Get(id string) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// All lists the sessions.
func (t *Table) All() []*Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

// Push sends a packet, or queues it if the client does not take it at once; its descriptors are the session's from now
// on. The channel gets nil when it has been sent, or why it will never be.
func (s *Session) Push(p *protocol.Packet) <-chan error {
	q := queued{p, make(chan error, 1)}
	s.mu.Lock()
	// Without a switch to another goroutine and back: an exec waits until it is in escrow.
	if !s.closed && !s.sending && len(s.queue) == 0 {
		if sent, err := s.conn.TrySend(p); sent || err != nil {
			s.mu.Unlock()
			q.drop(err)
			if over(err) {
				s.Close()
			}
			return q.done
		}
	}
	if s.closed || len(s.queue) >= maxQueue {
		closed := s.closed
		s.mu.Unlock()
		q.drop(ErrGone)
		if !closed {
			s.Close()
		}
		return q.done
	}
	s.queue = append(s.queue, q)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return q.done
}

// drop is the end of a packet, sent or not.
func (q queued) drop(err error) {
	q.packet.CloseFiles()
	q.done <- err
}

// over says whether an error of a packet ends its session. It does not if it is of the packet alone: the client would
// connect again, get all packets anew, and with this one the same end.
func over(err error) bool { return err != nil && !errors.Is(err, protocol.ErrPacket) }

// ErrGone is the error for a packet that is not sent, since its session is over.
var ErrGone = errors.New("the client has gone, or takes nothing")

func (s *Session) send() {
	for range s.wake {
		for {
			s.mu.Lock()
			s.sending = false
			if s.closed {
				s.mu.Unlock()
				return
			}
			if len(s.queue) == 0 {
				s.queue = nil
				s.mu.Unlock()
				break
			}
			q := s.queue[0]
			s.queue = s.queue[1:]
			s.sending = true
			s.mu.Unlock()
			err := s.conn.Send(q.packet)
			q.drop(err)
			if over(err) {
				s.Close()
				return
			}
		}
	}
}

// Drained waits until the queue has been sent.
func (s *Session) Drained(limit time.Duration) {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		empty := s.closed || len(s.queue) == 0 && !s.sending
		s.mu.Unlock()
		if empty {
			return
		}
	}
}

// Close ends the session. What is in its queue is not sent.
func (s *Session) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.conn.Close()
	for _, q := range s.queue {
		q.drop(ErrGone)
	}
	s.queue = nil
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
