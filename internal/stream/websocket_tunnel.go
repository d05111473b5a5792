package stream

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// isTunnel says whether a client wants to speak SPDY inside WebSocket messages.
func isTunnel(req *http.Request) bool { return wsstream.IsWebSocketRequestWithTunnelingProtocol(req) }

// tunnel accepts the WebSocket and returns the request that a SPDY client would have sent, and a writer whose Hijack
// is the tunnel. The writer is nil if the client has been refused.
func tunnel(w http.ResponseWriter, req *http.Request, idle time.Duration) (http.ResponseWriter, *http.Request) {
	upgrader := websocket.Upgrader{
		Subprotocols: []string{portforward.WebsocketsSPDYTunnelingPortForwardV1},
		// The token in the address is what lets a client in; where its page comes from does not matter.
		CheckOrigin: func(*http.Request) bool { return true },
	}
	conn, err := upgrader.Upgrade(w, req, nil)
	if err != nil {
		return nil, nil
	}
	inner := req.Clone(req.Context())
	inner.Header = http.Header{}
	inner.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	inner.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	inner.Header.Set(httpstream.HeaderProtocolVersion, portforward.ProtocolV1Name)
	pongs := newPongs(conn)
	go pongs.send(req.Context())
	t := &tunnelConn{Conn: conn, pongs: pongs, idle: idle}
	t.touch()
	return &tunnelWriter{header: http.Header{}, conn: t}, inner
}

// tunnelWriter stands in for a response of which the client has no need: WebSocket's handshake was the answer.
type tunnelWriter struct {
	header http.Header
	conn   net.Conn
}

func (w *tunnelWriter) Header() http.Header         { return w.header }
func (w *tunnelWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *tunnelWriter) WriteHeader(int)             {}

func (w *tunnelWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return w.conn, bufio.NewReadWriter(bufio.NewReader(w.conn), bufio.NewWriter(w.conn)), nil
}

// tunnelConn is the byte stream inside the binary messages of a WebSocket. One goroutine may read and one may write,
// which is how the SPDY library does it.
type tunnelConn struct {
	*websocket.Conn
	message io.Reader // what is left of the message at hand
	pongs   *pongs
	idle    time.Duration
	moved   atomic.Int64 // when the last bytes were read or written, in nanoseconds since 1970
}

func (c *tunnelConn) touch() { c.moved.Store(time.Now().UnixNano()) }

func (c *tunnelConn) Read(p []byte) (int, error) {
	for {
		if c.message == nil {
			kind, message, err := c.NextReader()
			if err != nil {
				if websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseGoingAway) {
					err = io.EOF
				}
				return 0, err
			}
			if kind != websocket.BinaryMessage {
				continue
			}
			c.message = message
		}
		n, err := c.message.Read(p)
		if err == io.EOF {
			c.message, err = nil, nil
		}
		c.touch()
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (c *tunnelConn) Write(p []byte) (int, error) {
	if err := c.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	c.touch()
	return len(p), c.pongs.behind(len(p))
}

func (c *tunnelConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// Close says goodbye and closes. The goodbye waits for another message that is being written. A client that reads
// slowly has as long for it as for any other message. One that has taken nothing for that long, which is why the
// connection is closed, has only closeGrace more.
func (c *tunnelConn) Close() error {
	deadline := time.Unix(0, c.moved.Load()).Add(c.idle)
	if least := time.Now().Add(closeGrace); deadline.Before(least) {
		deadline = least
	}
	c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), deadline)
	return c.Conn.Close()
}
