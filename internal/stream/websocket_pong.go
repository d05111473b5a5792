package stream

import (
	"context"
	"time"

	"github.com/gorilla/websocket"
)

const (
	// heartbeat keeps clients from giving up on a connection whose input nobody takes: frames are read in order,
	// so a client's pings wait behind its input then. A pong that nobody asked for is legal (RFC 6455, 5.5.3).
	heartbeat = 5 * time.Second
	// heartbeatBytes does the same for clients that read slowly: client-go gives up on a connection on which it has read
	// no pong for a minute, however much else it reads. It is little enough for a reader of 1 KiB/s.
	heartbeatBytes = 32 << 10
)

// noDeadline is what messages are sent with. With another the library gives the whole connection up when a client
// that reads slowly has no room for a message of two bytes; the session has a limit of its own.
var noDeadline time.Time

// pongs answers a connection's pings and adds some pongs that nobody asked for.
type pongs struct {
	conn  *websocket.Conn
	asked chan string // the last ping
	bytes int         // sent since the last pong that came behind some; the writer's
}

// newPongs takes the pings of a connection. What reads them waits for no writer: the library's own answer is sent
// with a deadline.
func newPongs(conn *websocket.Conn) *pongs {
	p := &pongs{conn: conn, asked: make(chan string, 1)}
	conn.SetPingHandler(func(message string) error {
		select {
		case <-p.asked: // only the last has to be answered (RFC 6455, 5.5.3)
		default:
		}
		p.asked <- message
		return nil
	})
	return p
}

// send sends pongs until ctx ends.
func (p *pongs) send(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		message := ""
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case message = <-p.asked:
		}
		if p.conn.WriteControl(websocket.PongMessage, []byte(message), noDeadline) != nil {
			return
		}
	}
}

// behind sends a pong behind every so many bytes.
func (p *pongs) behind(n int) error {
	if p.bytes += n; p.bytes < heartbeatBytes {
		return nil
	}
	p.bytes = 0
	return p.conn.WriteControl(websocket.PongMessage, nil, noDeadline)
}
