package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// goodbye is how long a client has to take the last of what it was sent if it never brought a token, or is cut off.
	goodbye = 2 * time.Second
	// lookAgain is how often a connection that lingers is looked at.
	lookAgain = time.Second
)

// watchedListener's connections tell when they end. Once a connection is taken over, net/http does not: the context of its
// request would live on when the client is gone, and a command with it.
type watchedListener struct {
	net.Listener
	lingering *lingering
}

func (l watchedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &watchedConn{Conn: conn, lingering: l.lingering, patience: goodbye}
	w.ctx, w.gone = context.WithCancel(context.Background())
	return w, nil
}

type watchedConn struct {
	net.Conn
	ctx       context.Context // ends when the connection does
	gone      context.CancelFunc
	once      sync.Once
	lingering *lingering

	reading sync.Mutex // one reader at a time

	mu       sync.Mutex
	closed   bool          // nobody but linger reads any more
	patience time.Duration // with a client that takes nothing of what is left
}

func (c *watchedConn) Read(p []byte) (int, error) {
	if c.isClosed() {
		return 0, net.ErrClosed // without waiting for linger
	}
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.isClosed() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p)
	if err != nil && !isTimeout(err) { // net/http stops a read of its own with a deadline
		c.gone()
	}
	return n, err
}

func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && !isTimeout(err) {
		c.gone()
	}
	return n, err
}

// SetReadDeadline and SetDeadline are the reader's, and so without effect once the connection is closed.
func (c *watchedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *watchedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *watchedConn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Close ends the connection, and leaves a client the time that it needs to take what was written: the kernel still has up to some
// megabytes of it. A socket that is closed resets the connection when the client sends something then, such as one of its pings, and the
// end of a command's output would be lost to a client that reads slowly.
func (c *watchedConn) Close() error {
	c.gone()
	tcp, ok := c.Conn.(*net.TCPConn)
	if !ok {
		return c.Conn.Close()
	}
	c.once.Do(func() {
		c.mu.Lock()
		c.closed = true
		patience := c.patience
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // whoever reads now gives up
		c.mu.Unlock()
		if tcp.CloseWrite() != nil {
			tcp.Close()
			return
		}
		c.lingering.all.Go(func() {
			defer tcp.Close()
			c.reading.Lock()
			defer c.reading.Unlock()
			linger(c.lingering.cut, tcp, patience)
		})
	})
	return nil
}

// be says how long a client may take nothing of what is left for it once the connection is closed.
func (c *watchedConn) be(patient time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patience = patient
}

// lingering are connections that have been closed here and that their clients may still read from.
type lingering struct {
	cut context.Context // ends when they are to end too
	all sync.WaitGroup
}

// linger returns when the client has closed its side too, or has taken nothing for as long as patience. It is short once cut has ended.
// What the client still sends is dropped.
func linger(cut context.Context, tcp *net.TCPConn, patience time.Duration) {
	buf := make([]byte, 4<<10)
	for left, moved := unsent(tcp), time.Now(); ; {
		if cut.Err() != nil {
			_ = tcp.SetReadDeadline(time.Now().Add(goodbye))
			_, _ = io.Copy(io.Discard, tcp)
			return
		}
		_ = tcp.SetReadDeadline(time.Now().Add(lookAgain))
		if _, err := tcp.Read(buf); err != nil && !isTimeout(err) {
			return
		}
		if now := unsent(tcp); now != left {
			left, moved = now, time.Now()
		} else if time.Since(moved) > patience {
			return
		}
	}
}

// unsent is how many bytes the client's kernel has not taken yet (SIOCOUTQ, the same as TIOCOUTQ, tcp(7)).
func unsent(tcp *net.TCPConn) (n int) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
	return n
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

type connKey struct{}

// connContext is http.Server.ConnContext: the context of a connection ends with the connection.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	w, ok := conn.(*watchedConn)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, connKey{}, w))
	context.AfterFunc(w.ctx, cancel)
	return ctx
}

// connOf is the connection that a context belongs to, nil if there is none.
func connOf(ctx context.Context) *watchedConn {
	w, _ := ctx.Value(connKey{}).(*watchedConn)
	return w
}

// cutOff closes the connection that a context belongs to.
func cutOff(ctx context.Context) {
	if w := connOf(ctx); w != nil {
		w.be(goodbye)
		w.Close()
	}
}
