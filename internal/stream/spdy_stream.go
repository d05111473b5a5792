package stream

import (
	"encoding/binary"
	"io"
	"net/http"
	"sync"

	"github.com/moby/spdystream/spdy"
)

// spdyStream is a stream that the client has opened. One goroutine may read and one may write.
type spdyStream struct {
	conn *spdyConn
	id   spdy.StreamId
	// What its headers say.
	kind, port, request string

	// The connection's lock guards the fields below.
	wake     *sync.Cond // signalled when there is something to read, or nothing more will come
	queue    [][]byte   // what has come and nobody has read
	unread   []byte     // what is left of the piece that the queue began with
	piece    int        // how long that piece was
	ended    bool       // no more comes behind the queue
	dropped  bool       // nobody will read: what comes is dropped
	finished bool       // nothing more is written
	onReset  func()     // called, with the lock held, when the client resets the stream
}

func newSPDYStream(c *spdyConn, id spdy.StreamId, header http.Header) *spdyStream {
	return &spdyStream{conn: c, id: id, wake: sync.NewCond(&c.mu), kind: header.Get(streamType),
		port: header.Get(portHeader), request: header.Get(requestHeader)}
}

// reserve waits until there is room for n more bytes; false: nobody will read them.
func (s *spdyStream) reserve(n int) bool {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.full = false }()
	for !s.dropped && !c.deaf {
		if c.share.take(int64(n + pieceCost)) {
			return true
		}
		c.full = true
		c.room.Wait()
	}
	return false
}

func (s *spdyStream) unreserve(n int) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.release(n)
}

// release is called with the lock held.
func (s *spdyStream) release(n int) {
	s.conn.share.give(int64(n + pieceCost))
	s.conn.room.Signal()
}

// push queues what there is room for.
func (s *spdyStream) push(piece []byte) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.dropped {
		s.release(len(piece))
		return
	}
	s.queue = append(s.queue, piece)
	s.wake.Signal()
}

func (s *spdyStream) finishReading() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.ended = true
	s.wake.Signal()
	s.forgetIfOver()
}

// forgetIfOver is called with the lock held. A stream counts among the connection's until both sides have ended it and
// all is read.
func (s *spdyStream) forgetIfOver() {
	if s.ended && s.finished && s.piece == 0 && len(s.queue) == 0 {
		delete(s.conn.streams, s.id)
	}
}

// drop is called with the lock held. It forgets the stream, and lets nobody read any more.
func (s *spdyStream) drop() {
	s.dropped = true
	if s.piece > 0 {
		s.release(s.piece)
	}
	for _, piece := range s.queue {
		s.release(len(piece))
	}
	s.queue, s.unread, s.piece = nil, nil, 0
	delete(s.conn.streams, s.id)
	s.wake.Broadcast()
	s.conn.room.Broadcast()
}

func (s *spdyStream) Read(p []byte) (int, error) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	for len(s.unread) == 0 {
		if len(s.queue) > 0 {
			s.unread, s.queue = s.queue[0], s.queue[1:]
			s.piece = len(s.unread)
			break
		}
		if s.ended || s.dropped {
			return 0, io.EOF
		}
		s.wake.Wait()
	}
	n := copy(p, s.unread)
	if s.unread = s.unread[n:]; len(s.unread) == 0 {
		s.release(s.piece)
		s.unread, s.piece = nil, 0
		s.forgetIfOver()
	}
	return n, nil
}

func (s *spdyStream) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		s.conn.mu.Lock()
		finished := s.finished
		s.conn.mu.Unlock()
		if finished {
			return n, errReset
		}
		piece := p[:min(len(p), pieceMost)]
		if err := s.conn.write(s.head(len(piece), 0), piece); err != nil {
			return n, err
		}
		n += len(piece)
		p = p[len(piece):]
	}
	return n, nil
}

// head begins a frame of data.
func (s *spdyStream) head(length int, flags uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(s.id)), flags<<24|uint32(length))
}

// finish says whether the stream could still be written to until now.
func (s *spdyStream) finish() bool {
	first := !s.finished
	s.finished = true
	return first
}

// Close ends what is written. What the client sends can still be read.
func (s *spdyStream) Close() error {
	s.conn.mu.Lock()
	first := s.finish()
	s.forgetIfOver()
	s.conn.mu.Unlock()
	if !first {
		return nil
	}
	return s.conn.write(s.head(0, flagFin), nil)
}

// Reset ends both directions. The client learns it unless it knows already that nothing more is written: what it sends
// is dropped then.
func (s *spdyStream) Reset() error {
	s.conn.mu.Lock()
	first := s.finish()
	s.drop()
	s.conn.mu.Unlock()
	if !first {
		return nil
	}
	return s.conn.write(control(spdy.TypeRstStream, 0, uint32(s.id), uint32(spdy.Cancel)), nil)
}

// whenReset has f called, with the connection's lock held, as soon as the client has reset the stream.
func (s *spdyStream) whenReset(f func()) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.dropped {
		f()
		return
	}
	s.onReset = f
}
