package stream

import (
	"context"
	"io"
	"sync"
)

// forwarder forwards ports for one client's connection, which may ask for many. The context is its own: the library's
// does not end with the client's connection.
type forwarder struct {
	ctx     context.Context
	runtime Runtime

	mu    sync.Mutex // guards the fields below
	open  int
	ended chan struct{} // made by wait; closed when open is 0
}

// PortForward is called by the library for each pair of streams, in a goroutine that the library does not wait for.
func (f *forwarder) PortForward(_ context.Context, sandbox, _ string, port int32, stream io.ReadWriteCloser) error {
	if !f.enter() {
		return f.ctx.Err()
	}
	defer f.leave()
	conn := newForwarded(f.ctx, stream)
	defer conn.Close()
	return f.runtime.PortForward(f.ctx, sandbox, port, conn)
}

func (f *forwarder) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended != nil {
		return false
	}
	f.open++
	return true
}

func (f *forwarder) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
	if f.open == 0 && f.ended != nil {
		close(f.ended)
	}
}

// wait takes no more and waits for what is open. The caller has ended the context.
func (f *forwarder) wait() {
	f.mu.Lock()
	f.ended = make(chan struct{})
	if f.open == 0 {
		close(f.ended)
	}
	f.mu.Unlock()
	<-f.ended
}

// forwarded is a connection to a port. CloseWrite tells the client that the pod has said all; the client's words
// still come until it ends them. Close ends both directions, and what the client says after that is read and dropped:
// unread, it would block the client's other streams.
type forwarded struct {
	stream io.ReadWriteCloser
	in     *io.PipeReader
	once   sync.Once // closes stream
	stop   func() bool
}

func newForwarded(ctx context.Context, stream io.ReadWriteCloser) *forwarded {
	in, feed := io.Pipe()
	c := &forwarded{stream: stream, in: in}
	c.stop = context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
	go func() {
		_, err := io.Copy(feed, stream)
		feed.CloseWithError(err) // nil is io.EOF
		io.Copy(io.Discard, stream)
	}()
	return c
}

func (c *forwarded) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c *forwarded) Write(p []byte) (int, error) { return c.stream.Write(p) }

// CloseWrite ends our direction. A WebSocket channel cannot say so, its client learns it by Close; only SPDY streams
// have a Reset.
func (c *forwarded) CloseWrite() error {
	if _, ok := c.stream.(interface{ Reset() error }); !ok {
		return nil
	}
	return c.closeStream()
}

func (c *forwarded) closeStream() (err error) {
	c.once.Do(func() { err = c.stream.Close() })
	return err
}

func (c *forwarded) Close() error {
	c.stop()
	c.in.Close()
	return c.closeStream()
}
