package v1alpha1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/cri"
	"berth/internal/pod"
)

// Exec runs a command with the client's messages as its input, until the client closes its side, and its output
// as messages to the client. Neither side is read faster than the other takes it.
func (s *runtimeService) Exec(stream grpc.BidiStreamingServer[api.ExecRequest, api.ExecResponse]) error {
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) { // a call without a message names no container
		return err
	}
	if first == nil {
		first = &api.ExecRequest{}
	}
	c := newCheck(first)
	c.ID("container_id", first.GetContainerId())
	c.Command("cmd", first.GetCmd())
	if err := c.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	stdin, feed := io.Pipe()
	defer stdin.Close()
	go func() {
		err := input(stream, first, feed)
		if err != nil {
			cancel(err) // before the command can see the end of its input, and end well
		}
		feed.CloseWithError(err) // nil is io.EOF
	}()
	out := &output{stream: stream}
	defer out.close()
	code, err := s.Runtime.Exec(ctx, first.GetContainerId(), pod.ExecOptions{
		Cmd:    slices.Clone(first.GetCmd()),
		TTY:    first.GetTty(),
		Stdin:  stdin,
		Stdout: writer(func(p []byte) error { return out.send(&api.ExecResponse{Stdout: p}) }),
		Stderr: writer(func(p []byte) error { return out.send(&api.ExecResponse{Stderr: p}) }),
	})
	switch {
	case stream.Context().Err() == nil && context.Cause(ctx) != nil:
		return context.Cause(ctx) // a message that makes no sense
	case err != nil:
		return err
	case code != 0:
		return &cri.ExitError{Code: code}
	}
	return nil
}

// input feeds a command from the first message and those after it, until the client closes its side.
func input(stream grpc.BidiStreamingServer[api.ExecRequest, api.ExecResponse], first *api.ExecRequest,
	feed *io.PipeWriter) error {
	for m := first; ; {
		if len(m.Stdin) > 0 {
			_, _ = feed.Write(m.Stdin) // a command that takes no more input runs on
		}
		var err error
		if m, err = stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		c := newCheck(m)
		if m.ContainerId != nil && m.GetContainerId() != first.GetContainerId() {
			c.Fail("container_id", "%q differs from the first message", m.GetContainerId())
		}
		if len(m.Cmd) > 0 && !slices.Equal(m.Cmd, first.Cmd) {
			c.Fail("cmd", "differs from the first message")
		}
		if m.Tty != nil && m.GetTty() != first.GetTty() {
			c.Fail("tty", "differs from the first message")
		}
		if err := c.Err(); err != nil {
			return err
		}
	}
}

// output is the stream to the client, for one writer at a time and for none once the call has ended.
type output struct {
	mu     sync.Mutex
	stream grpc.BidiStreamingServer[api.ExecRequest, api.ExecResponse]
	ended  bool
}

func (o *output) send(m *api.ExecResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return io.ErrClosedPipe
	}
	return o.stream.Send(m)
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
}

// writer sends what is written; messages keep a copy.
type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) {
	if err := w(bytes.Clone(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
