package stream

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"time"
)

// lingering is how long a client has to take the last of what it was sent.
const lingering = 2 * time.Second

// watchedListener's connections tell when they end. Once a connection is taken over, net/http does not: the context of its
// request would live on when the client is gone, and a command with it.
type watchedListener struct{ net.Listener }

func (l watchedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &watchedConn{Conn: conn}
	w.ctx, w.gone = context.WithCancel(context.Background())
	return w, nil
}

type watchedConn struct {
	net.Conn
	ctx  context.Context // ends when the connection does
	gone context.CancelFunc
	once sync.Once
}

func (c *watchedConn) Read(p []byte) (int, error) {
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

// Close lets the client take what was written last. A socket that is closed with input unread resets the connection, and the
// end of a command's output would be lost to a client that is still sending.
func (c *watchedConn) Close() error {
	c.gone()
	tcp, ok := c.Conn.(*net.TCPConn)
	if !ok {
		return c.Conn.Close()
	}
	c.once.Do(func() {
		if tcp.CloseWrite() != nil {
			tcp.Close()
			return
		}
		tcp.SetDeadline(time.Now().Add(lingering))
		go func() {
			io.Copy(io.Discard, tcp)
			tcp.Close()
		}()
	})
	return nil
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

// cutOff closes the connection that a context belongs to.
func cutOff(ctx context.Context) {
	if w, ok := ctx.Value(connKey{}).(*watchedConn); ok {
		w.Close()
	}
}
