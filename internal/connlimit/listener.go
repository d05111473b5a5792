package connlimit

import (
	"container/list"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// quiet is how long nothing is logged after a line of the log.
const quiet = time.Minute

// Listener is a TCP listener whose connections are *Conn.
type Listener struct {
	*net.TCPListener
	most int
	log  *slog.Logger

	mu        sync.Mutex // guards the fields below, and those of the connections
	strangers list.List  // of *Conn, the oldest first
	from      map[netip.Addr]int
	logged    time.Time
}

// New bounds the strangers of a listener. That some are closed is logged once in a while.
func New(listener *net.TCPListener, most int, log *slog.Logger) *Listener {
	return &Listener{TCPListener: listener, most: most, log: log, from: map[netip.Addr]int{}}
}

// Accept returns the next connection, of a stranger.
func (l *Listener) Accept() (net.Conn, error) {
	tcp, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	conn := &Conn{TCPConn: tcp, listener: l}
	if remote, ok := tcp.RemoteAddr().(*net.TCPAddr); ok {
		conn.from = remote.AddrPort().Addr().Unmap()
	}
	l.mu.Lock()
	conn.at = l.strangers.PushBack(conn)
	l.from[conn.from]++
	var out *Conn
	if l.strangers.Len() > l.most {
		out = l.oldestOfMost()
		out.forget()
		l.tell()
	}
	l.mu.Unlock()
	if out != nil {
		_ = out.SetLinger(0) // what it has not read yet takes no room in the kernel either
		_ = out.TCPConn.Close()
	}
	return conn, nil
}

// oldestOfMost is the oldest stranger of the address that has the most. It is called with the lock held.
func (l *Listener) oldestOfMost() *Conn {
	most := 0
	for _, n := range l.from {
		most = max(most, n)
	}
	for at := l.strangers.Front(); ; at = at.Next() {
		if conn := at.Value.(*Conn); l.from[conn.from] == most {
			return conn
		}
	}
}

// tell is called with the lock held.
func (l *Listener) tell() {
	if now := time.Now(); now.Sub(l.logged) > quiet {
		l.logged = now
		l.log.Warn("too many connections, of which the oldest are closed", "address", l.Addr().String(), "limit", l.most)
	}
}

// Conn is a connection of a stranger until it is welcome, or closed.
type Conn struct {
	*net.TCPConn
	listener *Listener
	from     netip.Addr
	at       *list.Element // among the strangers; nil: it is none of them
}

// Welcome is called when the client has shown that it may be there.
func (c *Conn) Welcome() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.forget()
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.Welcome()
	return c.TCPConn.Close()
}

// forget is called with the lock held.
func (c *Conn) forget() {
	if c.at == nil {
		return
	}
	l := c.listener
	l.strangers.Remove(c.at)
	c.at = nil
	if l.from[c.from]--; l.from[c.from] == 0 {
		delete(l.from, c.from)
	}
}
