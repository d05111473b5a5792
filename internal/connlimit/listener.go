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

	mu      sync.Mutex // guards the fields below, and those of the connections
	pending list.List  // unauthenticated connections, as *Conn, the oldest first
	from    map[netip.Addr]int
	logged  time.Time
}

// New bounds the unauthenticated connections of a listener to most. It logs at most once a minute that it closes some.
func New(listener *net.TCPListener, most int, log *slog.Logger) *Listener {
	return &Listener{TCPListener: listener, most: most, log: log, from: map[netip.Addr]int{}}
}

// Accept returns the next connection, as an unauthenticated *Conn.
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
	conn.at = l.pending.PushBack(conn)
	l.from[conn.from]++
	var out *Conn
	if l.pending.Len() > l.most {
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

// oldestOfMost is the oldest unauthenticated connection of the address that has the most. The caller holds the lock.
func (l *Listener) oldestOfMost() *Conn {
	most := 0
	for _, n := range l.from {
		most = max(most, n)
	}
	for at := l.pending.Front(); ; at = at.Next() {
		if conn := at.Value.(*Conn); l.from[conn.from] == most {
			return conn
		}
	}
}

// tell logs that connections are closed. The caller holds the lock.
func (l *Listener) tell() {
	if now := time.Now(); now.Sub(l.logged) > quiet {
		l.logged = now
		l.log.Warn("too many connections, of which the oldest are closed", "address", l.Addr().String(), "limit", l.most)
	}
}

// Conn is a connection. It counts as unauthenticated until Authenticated or Close is called.
type Conn struct {
	*net.TCPConn
	listener *Listener
	from     netip.Addr
	at       *list.Element // in the list of unauthenticated connections; nil: it is not there any more
}

// Authenticated says that the client has presented what gives it a right to be served.
func (c *Conn) Authenticated() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.forget()
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.Authenticated()
	return c.TCPConn.Close()
}

// forget takes the connection out of the count. The caller holds the lock.
func (c *Conn) forget() {
	if c.at == nil {
		return
	}
	l := c.listener
	l.pending.Remove(c.at)
	c.at = nil
	if l.from[c.from]--; l.from[c.from] == 0 {
		delete(l.from, c.from)
	}
}
