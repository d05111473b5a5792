package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/connlimit"
)

const (
	// goodbye is how long a client has to take the last of what it was sent if it never brought a token, or is cut off.
	goodbye = 2 * time.Second
	// hangUpEvery is how often a connection is looked at that nobody reads.
	hangUpEvery = 5 * time.Second
	// lookAgain is how often a connection that lingers is looked at.
	lookAgain = time.Second
)

// watchedListener's connections tell when they end. Once a connection is taken over, net/http does not:
// the context of its request would live on when the client is gone, and a command with it.
type watchedListener struct {
	net.Listener
	open *sessions
}

func (l watchedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &watchedConn{Conn: conn, open: l.open, patience: goodbye}
	w.ctx, w.gone = context.WithCancel(context.Background())
	return w, nil
}

type watchedConn struct {
	net.Conn
	ctx  context.Context // ends when the connection does
	gone context.CancelFunc
	once sync.Once // for close
	open *sessions

	reading sync.Mutex   // one reader at a time
	reads   atomic.Int64 // how many there were

	mu       sync.Mutex
	closed   bool          // nobody but linger reads any more
	patience time.Duration // with a client that takes nothing of what is left
	counted  bool          // among the sessions
	over     bool          // nothing is left of it
	release  func()        // called once nothing is left of it; nil: nothing is to be called
	stopCut  func() bool   // ends the wait for the sessions' cut
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
	c.reads.Add(1)
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

// takenOver is called when the HTTP server has given the connection to a handler: the server's end waits
// for it from then on, and closes it when it has no more patience. A handler can return before its connection
// is closed: SPDY closes it later.
func (c *watchedConn) takenOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if c.counted = c.open.join(); c.counted {
		c.stopCut = context.AfterFunc(c.open.cut, func() {
			c.setPatience(goodbye)
			c.Close()
		})
		before := c.reads.Load()
		time.AfterFunc(hangUpEvery, func() { c.lookForHangUp(before) })
	}
}

// lookForHangUp notices that the client is gone while nobody reads, since what it has sent waits for a container that
// does not read either. before is how many reads there were when it last looked.
func (c *watchedConn) lookForHangUp(before int64) {
	if c.ctx.Err() != nil {
		return
	}
	now := c.reads.Load()
	if now == before && c.reading.TryLock() { // a goroutine that reads learns it from the read
		gone := hungUp(c.Conn)
		c.reading.Unlock()
		if gone {
			c.gone()
			return
		}
	}
	time.AfterFunc(hangUpEvery, func() { c.lookForHangUp(now) })
}

// hungUp says whether the client has closed its side, or has reset the connection.
func hungUp(conn net.Conn) (gone bool) {
	tcp, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0
	})
	return gone
}

// Close ends the connection, and leaves a client the time that it needs to take what was written: the kernel still
// has up to some megabytes of it. A socket that is closed resets the connection when the client sends something then,
// such as one of its pings, and the end of a command's output would be lost to a client that reads slowly.
func (c *watchedConn) Close() (err error) {
	c.gone()
	c.once.Do(func() { err = c.close() })
	return err
}

func (c *watchedConn) close() error {
	c.mu.Lock()
	c.closed = true
	patience, stopCut := c.patience, c.stopCut
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // a read that is under way ends
	counted := c.counted || c.open.join()
	c.mu.Unlock()
	if stopCut != nil {
		stopCut()
	}
	tcp, ok := c.Conn.(tcpConn)
	if !ok || !counted || tcp.CloseWrite() != nil {
		err := c.Conn.Close()
		c.ended()
		if counted {
			c.open.leave()
		}
		return err
	}
	go func() {
		defer c.open.leave()
		defer c.ended()
		defer tcp.Close()
		c.reading.Lock()
		defer c.reading.Unlock()
		linger(c.open.cut, tcp, patience)
	}()
	return nil
}

// whenEnded has f called when nothing is left of a connection that a handler has taken over: it may linger long after
// its handler has returned. Where that is so already, or no handler has taken it over, f is called now.
func (c *watchedConn) whenEnded(f func()) {
	c.mu.Lock()
	waits := c.counted && !c.over
	if waits {
		c.release = f
	}
	c.mu.Unlock()
	if !waits {
		f()
	}
}

func (c *watchedConn) ended() {
	c.mu.Lock()
	c.over = true
	f := c.release
	c.mu.Unlock()
	if f != nil {
		f()
	}
}

// tcpConn is a *net.TCPConn, or one in a wrapper.
type tcpConn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// authenticated says that the client has presented a token.
func (c *watchedConn) authenticated() {
	if limited, ok := c.Conn.(*connlimit.Conn); ok {
		limited.Authenticated()
	}
}

// setPatience sets how long a client may read nothing of what is left for it, once the connection is closed.
func (c *watchedConn) setPatience(patience time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patience = patience
}

// sessions counts what the server's end waits for: handlers, connections that they have taken over, and connections
// that have been closed here and that their clients may still read from.
type sessions struct {
	cut context.Context // ends when connections are to end too

	mu     sync.Mutex
	n      int
	ending bool
	none   chan struct{} // closed once ending is set and n is zero
}

// begin counts one more, unless the server ends.
func (s *sessions) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	s.n++
	return true
}

// join counts one more while others are waited for, even if the server ends. Once all of them have left, nobody waits.
func (s *sessions) join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending && s.n == 0 {
		return false
	}
	s.n++
	return true
}

func (s *sessions) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
	if s.ending && s.n == 0 {
		close(s.none)
	}
}

// end lets no more begin. What it returns is closed when all have left.
func (s *sessions) end() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ending {
		s.ending = true
		if s.n == 0 {
			close(s.none)
		}
	}
	return s.none
}

// linger returns when the client has closed its side too, or has taken nothing for as long as patience.
// It is short once cut has ended. What the client still sends is dropped.
func linger(cut context.Context, tcp tcpConn, patience time.Duration) {
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
func unsent(tcp tcpConn) (n int) {
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
	w := watched(conn)
	if w == nil {
		return ctx
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, connKey{}, w))
	context.AfterFunc(w.ctx, cancel)
	return ctx
}

// connState is http.Server.ConnState.
func connState(conn net.Conn, state http.ConnState) {
	if w := watched(conn); w != nil && state == http.StateHijacked {
		w.takenOver()
	}
}

// watched is the connection below conn, which may be TLS'. nil: it is not one of the listener's.
func watched(conn net.Conn) *watchedConn {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	w, _ := conn.(*watchedConn)
	return w
}

// connOf is the connection that a context belongs to, nil if there is none.
func connOf(ctx context.Context) *watchedConn {
	w, _ := ctx.Value(connKey{}).(*watchedConn)
	return w
}

// cutOff closes the connection that a context belongs to.
func cutOff(ctx context.Context) {
	if w := connOf(ctx); w != nil {
		w.setPatience(goodbye)
		w.Close()
	}
}
