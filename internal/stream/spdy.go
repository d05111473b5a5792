package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/moby/spdystream/spdy"
	"k8s.io/streaming/pkg/httpstream"
	httpspdy "k8s.io/streaming/pkg/httpstream/spdy"
)

// Berth speaks the server's side of SPDY/3.1 itself, as much of it as Kubernetes' clients use, since the library that
// others use (moby/spdystream) lets a client choose how much memory its connection takes: it queues 256 frames of up to
// 16 MiB each, header blocks of any size that they inflate to, and any number of streams. Here a connection has one
// reader, which puts data into queues of its streams. The queues have a bound for the connection and one for the
// server. Where one is reached, the reader waits: TCP holds the client up, and nobody else. Frames that are not data
// take no room in the queues. Another goroutine writes the answers to them, so that a client that does not read what it
// is sent can still send.
const (
	// controlMost bounds the payload of a frame that is not data, in bytes. Clients name a stream's kind, its port and
	// its request, which takes less than 100.
	controlMost = 16 << 10
	// headersMost and headerMost bound what header blocks inflate to: how many headers there are, and how long a name or
	// a value may be.
	headersMost = 32
	headerMost  = 256
	// pieceMost bounds the data that are read, or written, at once.
	pieceMost = 32 << 10
	// pieceCost is added to the length of queued data for what Go takes to keep them.
	pieceCost = 64
	// answersMost bounds the answers that wait to be written.
	answersMost = 64
	// openedMost bounds the streams that wait to be accepted. It has room for all streams of an exec, which accepts those
	// that it wants and no more.
	openedMost = 8
	// probeEvery is how often a client is asked whether it lives while the reader waits for room. The end of its
	// connection is behind what is not read. But where its socket is closed, its kernel resets the connection when
	// something comes.
	probeEvery = 5 * time.Second
)

// Frames that are not data begin with a word that has this bit, the version and the type.
const (
	controlBit = 1 << 31
	version3   = spdy.Version << 16
	flagFin    = 1
	flagOneWay = 2 // of SYN_STREAM: the server does not write
	lengthBits = 1<<24 - 1
	streamBits = 1<<31 - 1
	serverPing = 2 // the ID of the server's pings: even, as all that a server begins
)

// deflateDictionary begins the server's header blocks, which are one stream of zlib (RFC 1950): the methods, and the ID
// of SPDY/3's dictionary.
var deflateDictionary = []byte{0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2}

// noHeaders is a block of no headers: a stored block (RFC 1951, 3.2.4) of the number zero, and an empty one, at which
// readers hand out what they have. Berth sends no others: a compressor would take 750 KiB for each connection.
var noHeaders = []byte{0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}

// errReset is the error of who writes to a stream that has been reset, or that the writer has closed.
var errReset = fmt.Errorf("the stream has been reset: %w", net.ErrClosed)

// protocolError ends a connection whose client breaks the protocol or a bound.
type protocolError struct{ what string }

func (e protocolError) Error() string { return "SPDY: " + e.what }

// admitter says whether a client may open a stream with these headers, and whether the server reads it: what comes on
// another is dropped. The connection's reader calls it.
type admitter func(spdy.StreamId, http.Header) (reads, ok bool)

// spdyConn is one client's connection.
type spdyConn struct {
	conn    net.Conn
	in      *bufio.Reader // the reader's
	framer  *spdy.Framer  // the reader's; it reads header blocks from block
	block   io.Reader
	timeout time.Duration
	admit   admitter
	most    int // streams at once

	writing sync.Mutex // guards out and greeted
	out     *bufio.Writer
	greeted bool // deflateDictionary has been sent

	answers chan answer
	opened  chan *spdyStream
	read    chan struct{} // closed when nothing more is read
	done    chan struct{} // closed when the connection is

	mu      sync.Mutex // guards the fields below, and those of streams
	idle    *time.Timer
	room    *sync.Cond // signalled when there is more room in share
	streams map[spdy.StreamId]*spdyStream
	last    spdy.StreamId // the newest that the client has opened
	share   share
	full    bool // the reader waits for room
	deaf    bool // nothing more is queued
	ended   bool // done is closed
}

// answer is a frame that the reader wants to be written. A stream that it opens is handed out behind it.
type answer struct {
	frame []byte
	opens *spdyStream
}

// upgradeSPDY takes an HTTP connection over for SPDY; nil: the client has been refused. The caller closes it.
func (s *Server) upgradeSPDY(w http.ResponseWriter, req *http.Request, idle time.Duration, most int,
	admit admitter) *spdyConn {
	if !strings.Contains(strings.ToLower(req.Header.Get(httpstream.HeaderConnection)), "upgrade") ||
		!strings.Contains(strings.ToUpper(req.Header.Get(httpstream.HeaderUpgrade)), httpspdy.HeaderSpdy31) {
		http.Error(w, "this address is for SPDY/3.1 and WebSocket: the request has no Connection: Upgrade, or names neither "+
			"in its header Upgrade", http.StatusBadRequest)
		return nil
	}
	w.Header().Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	w.Header().Set(httpstream.HeaderUpgrade, httpspdy.HeaderSpdy31)
	w.WriteHeader(http.StatusSwitchingProtocols)
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		s.cfg.Log.ErrorContext(req.Context(), "SPDY", "error", "the connection cannot be taken over")
		return nil
	}
	conn, buffered, err := hijacker.Hijack()
	if err != nil {
		s.cfg.Log.DebugContext(req.Context(), "SPDY", "error", err)
		return nil
	}
	c := newSPDY(conn, buffered.Reader, s.memory, idle, most, admit)
	go c.answer()
	go func() {
		err := c.readFrames()
		var broken protocolError
		if errors.As(err, &broken) {
			s.cfg.Log.WarnContext(req.Context(), "a streaming client is cut off", "address", req.RemoteAddr, "error", err)
			c.end()
		}
		c.endReading()
		// The client may still read. That it is gone is only seen by who reads.
		_, _ = io.Copy(io.Discard, c.in)
	}()
	return c
}

func newSPDY(conn net.Conn, in *bufio.Reader, memory *budget, idle time.Duration, most int,
	admit admitter) *spdyConn {
	c := &spdyConn{conn: conn, in: in, timeout: idle, admit: admit, most: most, out: bufio.NewWriter(conn),
		answers: make(chan answer, answersMost), opened: make(chan *spdyStream, openedMost), read: make(chan struct{}),
		done: make(chan struct{}), streams: map[spdy.StreamId]*spdyStream{},
		share: share{of: memory, least: connectionLeast, most: connectionMost}}
	c.room = sync.NewCond(&c.mu)
	// It fails for a level of compression only, which is its own.
	c.framer, _ = spdy.NewFramerWithOptions(io.Discard, readerFunc(func(p []byte) (int, error) { return c.block.Read(p) }),
		spdy.WithMaxControlFramePayloadSize(controlMost), spdy.WithMaxHeaderCount(headersMost),
		spdy.WithMaxHeaderFieldSize(headerMost))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = time.AfterFunc(idle, c.end)
	return c
}

// touch says that something has moved.
func (c *spdyConn) touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.idle.Reset(c.timeout)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// accept is the next stream that the client opens; nil: there are no more, or ctx has ended.
func (c *spdyConn) accept(ctx context.Context) *spdyStream {
	select {
	case s := <-c.opened:
		return s
	case <-c.read:
		return nil
	case <-ctx.Done():
		return nil
	}
}

// readFrames returns when the client ends the connection, or breaks the protocol.
func (c *spdyConn) readFrames() error {
	for {
		var head [8]byte
		if _, err := io.ReadFull(c.in, head[:]); err != nil {
			return err
		}
		c.touch()
		word, rest := binary.BigEndian.Uint32(head[:4]), binary.BigEndian.Uint32(head[4:])
		length, flags := int(rest&lengthBits), byte(rest>>24)
		var err error
		if word&controlBit == 0 {
			err = c.readData(spdy.StreamId(word), length, flags&flagFin != 0)
		} else {
			err = c.readControl(head[:], spdy.ControlFrameType(word&0xffff), length)
		}
		if err != nil {
			return err
		}
	}
}

// readData puts data into the queue of their stream, as much at once as there is room for.
func (c *spdyConn) readData(id spdy.StreamId, length int, fin bool) error {
	if id == 0 {
		return protocolError{"data of stream 0"}
	}
	c.mu.Lock()
	s := c.streams[id]
	c.mu.Unlock()
	for length > 0 {
		n := min(length, pieceMost)
		if s == nil || !s.reserve(n) {
			if _, err := c.in.Discard(n); err != nil {
				return err
			}
		} else {
			piece := make([]byte, n)
			_, err := io.ReadFull(c.in, piece)
			if err != nil {
				s.unreserve(n)
				return err
			}
			s.push(piece)
		}
		length -= n
		c.touch()
	}
	if fin && s != nil {
		s.finishReading()
	}
	return nil
}

func (c *spdyConn) readControl(head []byte, kind spdy.ControlFrameType, length int) error {
	if length > controlMost {
		return protocolError{fmt.Sprintf("a frame of type %d has %d bytes, more than %d", kind, length, controlMost)}
	}
	switch kind {
	case spdy.TypeSynStream, spdy.TypeSynReply, spdy.TypeHeaders:
		// The header block continues the one before it: all of them have to be inflated.
		rest := &io.LimitedReader{R: c.in, N: int64(length)}
		c.block = io.MultiReader(bytes.NewReader(head), rest)
		frame, err := c.framer.ReadFrame()
		if err == nil && rest.N > 0 {
			err = errors.New("bytes are left")
		}
		if err != nil {
			return protocolError{fmt.Sprintf("a header block, of at most %d headers of %d bytes: %v", headersMost, headerMost,
				err)}
		}
		if syn, ok := frame.(*spdy.SynStreamFrame); ok {
			return c.open(syn)
		}
		return nil
	case spdy.TypeRstStream, spdy.TypePing:
		var payload [8]byte
		want := map[spdy.ControlFrameType]int{spdy.TypeRstStream: 8, spdy.TypePing: 4}[kind]
		if length != want {
			return protocolError{fmt.Sprintf("a frame of type %d has %d bytes, want %d", kind, length, want)}
		}
		if _, err := io.ReadFull(c.in, payload[:length]); err != nil {
			return err
		}
		id := binary.BigEndian.Uint32(payload[:4])
		if kind == spdy.TypeRstStream {
			c.forget(spdy.StreamId(id & streamBits))
		} else if id%2 == 1 { // the client's own
			return c.say(answer{frame: control(spdy.TypePing, 0, id)})
		}
		return nil
	case spdy.TypeGoAway:
		return io.EOF
	}
	_, err := c.in.Discard(length) // settings, windows, and what there may be in extensions
	return err
}

// open is the client's wish for another stream.
func (c *spdyConn) open(frame *spdy.SynStreamFrame) error {
	id, flags := frame.StreamId, frame.CFHeader.Flags
	c.mu.Lock()
	if id%2 == 0 || id <= c.last || id > streamBits {
		c.mu.Unlock()
		return protocolError{fmt.Sprintf("stream %d is opened after %d", id, c.last)}
	}
	c.last = id
	full := len(c.streams) >= c.most
	c.mu.Unlock()
	if full {
		return c.say(answer{frame: control(spdy.TypeRstStream, 0, uint32(id), uint32(spdy.RefusedStream))})
	}
	reads, ok := c.admit(id, frame.Headers)
	if !ok {
		return c.say(answer{frame: control(spdy.TypeRstStream, 0, uint32(id), uint32(spdy.Cancel))})
	}
	s := newSPDYStream(c, id, frame.Headers)
	s.ended, s.finished, s.dropped = flags&flagFin != 0, flags&flagOneWay != 0, !reads
	c.mu.Lock()
	if !c.ended {
		c.streams[id] = s
	}
	c.mu.Unlock()
	return c.say(answer{opens: s})
}

// say has an answer written. It waits where too many wait already.
func (c *spdyConn) say(a answer) error {
	select {
	case c.answers <- a:
		return nil
	case <-c.done:
		return net.ErrClosed
	}
}

// answer writes answers, and probes, until the connection is closed.
func (c *spdyConn) answer() {
	probe := time.NewTicker(probeEvery)
	defer probe.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-probe.C:
			c.probe()
		case a := <-c.answers:
			if a.opens == nil {
				_ = c.write(a.frame, nil)
				continue
			}
			if c.reply(a.opens.id) != nil {
				continue
			}
			select {
			case c.opened <- a.opens:
			case <-c.done:
			}
		}
	}
}

// probe lets a reader that waits for room try again, and sends a ping. It is no sign that something moves.
func (c *spdyConn) probe() {
	c.mu.Lock()
	full := c.full
	if full {
		c.room.Signal() // other connections may have given something back, of which nobody tells
	}
	c.mu.Unlock()
	if !full {
		return
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = c.out.Write(control(spdy.TypePing, 0, serverPing))
	_ = c.out.Flush() // whoever watches the connection sees that it has ended
}

// reply tells the client that its stream is open.
func (c *spdyConn) reply(id spdy.StreamId) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	block := noHeaders
	if !c.greeted {
		block = append(bytes.Clone(deflateDictionary), noHeaders...)
		c.greeted = true
	}
	frame := control(spdy.TypeSynReply, len(block), uint32(id))
	return c.writeLocked(frame, block)
}

// control is a frame that is not data: these words, and so many more bytes that its caller adds.
func control(kind spdy.ControlFrameType, more int, words ...uint32) []byte {
	frame := binary.BigEndian.AppendUint32(nil, controlBit|version3|uint32(kind))
	frame = binary.BigEndian.AppendUint32(frame, uint32(4*len(words)+more))
	for _, word := range words {
		frame = binary.BigEndian.AppendUint32(frame, word)
	}
	return frame
}

func (c *spdyConn) write(head, rest []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.writeLocked(head, rest)
}

func (c *spdyConn) writeLocked(head, rest []byte) error {
	_, _ = c.out.Write(head) // Flush has the error too
	_, _ = c.out.Write(rest)
	if err := c.out.Flush(); err != nil {
		return err
	}
	c.touch()
	return nil
}

// forget drops a stream that the client has reset.
func (c *spdyConn) forget(id spdy.StreamId) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil {
		s.finished = true
		s.drop()
		if s.onReset != nil {
			s.onReset()
		}
	}
}

// endReading lets readers of all streams have what has come, and no more.
func (c *spdyConn) endReading() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf {
		return
	}
	c.deaf = true
	close(c.read)
	for _, s := range c.streams {
		s.ended = true
		s.wake.Broadcast()
	}
	c.room.Broadcast()
}

// close resets the streams, tells the client that it is over, and closes the connection.
func (c *spdyConn) close() {
	c.mu.Lock()
	var open []*spdyStream
	for _, s := range c.streams {
		open = append(open, s)
	}
	last := c.last
	c.mu.Unlock()
	for _, s := range open {
		_ = s.Reset()
	}
	_ = c.write(control(spdy.TypeGoAway, 0, uint32(last), uint32(spdy.GoAwayOK)), nil)
	c.end()
}

// end closes the connection. What is in the queues is dropped.
func (c *spdyConn) end() {
	c.endReading()
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended = true
	close(c.done)
	for _, s := range c.streams {
		s.finished = true
		s.drop()
	}
	c.idle.Stop()
	c.mu.Unlock()
	_ = c.conn.Close()
}
