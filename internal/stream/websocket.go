package stream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

// closeGrace is how long the connection of a client that does not answer the end of its session stays open as it is.
// After that its client can only read.
const closeGrace = 2 * time.Second

// channelProtocols are those of exec and attach. A client may name none, and means the oldest. Those of
// "base64" are for clients that can only send text: a number is a digit there, and what follows is in base64.
var channelProtocols = []string{remotecommand.StreamProtocolV5Name, remotecommand.StreamProtocolV4Name,
	"v4." + wsstream.Base64ChannelWebSocketProtocol, wsstream.ChannelWebSocketProtocol,
	wsstream.Base64ChannelWebSocketProtocol}

// openChannels accepts a WebSocket that speaks one of some protocols; nil: the client has been refused.
func (s *Server) openChannels(w http.ResponseWriter, req *http.Request, protocols []string) *channels {
	upgrader := websocket.Upgrader{
		// The token in the address is what lets a client in; where its page comes from does not matter.
		CheckOrigin: func(*http.Request) bool { return true },
	}
	if offered := websocket.Subprotocols(req); len(offered) > 0 {
		i := slices.IndexFunc(offered, func(protocol string) bool { return slices.Contains(protocols, protocol) })
		if i < 0 {
			http.Error(w, fmt.Sprintf("header Sec-Websocket-Protocol: %q has none of %q", offered, protocols),
				http.StatusForbidden)
			return nil
		}
		upgrader.Subprotocols = offered[i : i+1]
	}
	conn, err := upgrader.Upgrade(w, req, nil)
	if err != nil {
		s.cfg.Log.DebugContext(req.Context(), "WebSocket", "error", err) // the client has the answer
		return nil
	}
	return &channels{conn: conn, timeout: s.cfg.IdleTimeout, pongs: newPongs(conn),
		text: strings.HasSuffix(conn.Subprotocol(), wsstream.Base64ChannelWebSocketProtocol)}
}

// serveChannels speaks the protocols of channels. Each message begins with the number of its stream; in v5 a message
// of 255 and a number ends that stream. The outcome goes to the error stream, from v4 on as a Status object in JSON.
func (s *Server) serveChannels(w http.ResponseWriter, req *http.Request, session executor, run func(streams) error) {
	ctx, wanted := session.ctx, session.wanted
	c := s.openChannels(w, req, channelProtocols)
	if c == nil {
		return
	}
	c.idle = time.AfterFunc(s.cfg.IdleTimeout, session.giveUp)
	defer c.idle.Stop()
	defer c.conn.Close()

	stdin, feed := io.Pipe()
	sizes := make(chan remotecommand.TerminalSize)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(sizes)
		feed.CloseWithError(c.read(ctx, feed, wanted.Stdin, sizes))
	}()
	beat, stop := context.WithCancel(req.Context())
	defer stop()
	go c.pongs.send(beat)

	// An empty message tells clients that the session is there, as other servers of the protocol do.
	switch {
	case wanted.Stdout:
		c.send(remotecommand.StreamStdOut, nil)
	case wanted.Stderr:
		c.send(remotecommand.StreamStdErr, nil)
	default:
		c.send(remotecommand.StreamErr, nil)
	}
	st := streams{stdin: stdin, stdout: channel{c, remotecommand.StreamStdOut},
		stderr: channel{c, remotecommand.StreamStdErr}}
	if wanted.TTY {
		st.resize = sizes
	} else {
		go drain(sizes)
	}
	err := run(st)
	stdin.Close() // what still comes is dropped
	if wanted.TTY {
		go drain(sizes)
	}
	c.finish(err)
	select {
	case <-read: // the client has closed its side too
	case <-time.After(closeGrace):
	case <-req.Context().Done():
	}
}

func drain[T any](ch <-chan T) {
	for range ch { //nolint:revive // the values are not wanted
	}
}

// channels are the streams of one connection.
type channels struct {
	conn    *websocket.Conn
	write   sync.Mutex // one message at a time
	idle    *time.Timer
	timeout time.Duration
	pongs   *pongs
	text    bool // messages are text
}

// next waits for the next message. Its error is io.EOF when the client ended the connection in order.
func (c *channels) next() (number byte, data io.Reader, err error) {
	for {
		kind, message, err := c.conn.NextReader()
		if err != nil {
			if websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseGoingAway) {
				err = io.EOF
			}
			return 0, nil, err
		}
		c.idle.Reset(c.timeout)
		if kind != websocket.BinaryMessage && !c.text {
			continue
		}
		var number [1]byte
		if _, err := io.ReadFull(message, number[:]); err != nil {
			continue
		}
		if c.text {
			return number[0] - '0', base64.NewDecoder(base64.StdEncoding, message), nil
		}
		return number[0], message, nil
	}
}

// read takes messages until the connection ends. Its error is what the reader of standard input gets;
// io.EOF when the client ended the input or the connection in order.
func (c *channels) read(ctx context.Context, stdin *io.PipeWriter, wanted bool,
	sizes chan<- remotecommand.TerminalSize) error {
	var end error
	for {
		number, message, err := c.next()
		if err != nil {
			if end == nil || errors.Is(err, io.EOF) {
				end = err
			}
			return end
		}
		switch number {
		case remotecommand.StreamStdIn:
			if wanted {
				io.Copy(stdin, message) // nobody reads it any more: the rest is skipped by NextReader
			}
		case remotecommand.StreamResize:
			var size remotecommand.TerminalSize
			if json.NewDecoder(io.LimitReader(message, resizeMost)).Decode(&size) == nil {
				select {
				case sizes <- size:
				case <-ctx.Done():
				}
			}
		case remotecommand.StreamClose:
			if c.conn.Subprotocol() != remotecommand.StreamProtocolV5Name {
				continue
			}
			var ends [1]byte
			if _, err := io.ReadFull(message, ends[:]); err == nil && ends[0] == remotecommand.StreamStdIn {
				stdin.Close()
			}
		}
	}
}

func (c *channels) send(number byte, data []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	c.idle.Reset(c.timeout)
	kind := websocket.BinaryMessage
	if c.text {
		kind = websocket.TextMessage
		number, data = number+'0', base64.StdEncoding.AppendEncode(nil, data)
	}
	w, err := c.conn.NextWriter(kind)
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte{number}); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return c.pongs.behind(len(data))
}

// finish tells the client how it ended, and that it has.
func (c *channels) finish(err error) {
	// v5 differs from v4 in how a stream is ended alone, and base64 in how messages are written.
	protocol := remotecommand.StreamProtocolV1Name
	if p := c.conn.Subprotocol(); strings.HasPrefix(p, "v4.") || strings.HasPrefix(p, "v5.") {
		protocol = remotecommand.StreamProtocolV4Name
	}
	if said := status(protocol, err); len(said) > 0 {
		c.send(remotecommand.StreamErr, said)
	}
	c.goodbye()
}

// goodbye ends the connection in order.
func (c *channels) goodbye() {
	c.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), noDeadline)
}

// channel is one stream to the client.
type channel struct {
	c      *channels
	number byte
}

func (ch channel) Write(p []byte) (int, error) {
	if err := ch.c.send(ch.number, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// result is the part of metav1.Status that clients read from the error stream.
type result struct {
	Status  string   `json:"status"`
	Message string   `json:"message,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Details *details `json:"details,omitempty"`
	Code    int      `json:"code,omitempty"`
}

type details struct {
	Causes []cause `json:"causes,omitempty"`
}

type cause struct {
	Type    string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

func outcome(err error) result {
	var exit utilexec.ExitError
	switch {
	case err == nil:
		return result{Status: "Success"}
	case errors.As(err, &exit) && exit.Exited():
		return result{
			Status:  "Failure",
			Reason:  remotecommand.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", err),
			Details: &details{Causes: []cause{{
				Type:    remotecommand.ExitCodeCauseType,
				Message: strconv.Itoa(exit.ExitStatus()),
			}}},
		}
	}
	return result{
		Status:  "Failure",
		Reason:  "InternalError",
		Message: fmt.Sprintf("Internal error occurred: %v", err),
		Code:    http.StatusInternalServerError,
	}
}
