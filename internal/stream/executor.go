package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"berth/internal/model"
	"berth/internal/pod"
)

// executor runs one client's request. Its context ends with the client's connection, or with end: that has the reason
// why a session ends whose client is still there, and explain tells the client.
type executor struct {
	ctx    context.Context
	end    context.CancelCauseFunc
	server *Server
	wanted Wanted
	as     model.ExecAs // of an exec
	start  bool         // an attach starts its container, with a terminal of this size
	size   pod.TermSize
}

func (s *Server) executor(ctx context.Context, wanted Wanted) (executor, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(ctx)
	return executor{ctx: ctx, end: end, server: s, wanted: wanted}, end
}

// giveUp ends a session on which nothing moves. If the client takes what is there for it after all, it finds
// the reason behind it.
func (e executor) giveUp() {
	e.end(fmt.Errorf("nothing has moved on the connection for %v, the idle_timeout of streams", e.server.cfg.IdleTimeout))
	time.AfterFunc(e.server.lastWords, func() { cutOff(e.ctx) })
}

// patientWriter waits for its client for as long as the session may be idle.
type patientWriter struct {
	io.Writer
	session executor
}

func (w patientWriter) Write(p []byte) (int, error) {
	defer time.AfterFunc(w.session.server.cfg.IdleTimeout, w.session.giveUp).Stop()
	return w.Writer.Write(p)
}

// exec returns a utilexec.CodeExitError for a command that ends with another code than 0: kubectl exec ends with that
// code then.
func (e executor) exec(container string, cmd []string, st streams) error {
	code, err := e.server.cfg.Runtime.Exec(e.ctx, container, pod.ExecOptions{
		Cmd:    cmd,
		As:     e.as,
		TTY:    e.wanted.TTY,
		Stdin:  reader(e.wanted.Stdin, st.stdin),
		Stdout: e.writer(e.wanted.Stdout, st.stdout),
		Stderr: e.writer(e.wanted.Stderr, st.stderr),
		Resize: e.sizes(st.resize),
	})
	if err != nil {
		return e.explain(err)
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

func (e executor) attach(container string, st streams) error {
	opts := pod.AttachOptions{
		TTY:    e.wanted.TTY,
		Stdin:  reader(e.wanted.Stdin, st.stdin),
		Stdout: e.writer(e.wanted.Stdout, st.stdout),
		Stderr: e.writer(e.wanted.Stderr, st.stderr),
		Resize: e.sizes(st.resize),
	}
	if e.start {
		return e.explain(e.server.cfg.Runtime.StartAttached(e.ctx, container, e.size, opts))
	}
	return e.explain(e.server.cfg.Runtime.Attach(e.ctx, container, opts))
}

// explain says why a stream has ended when it was the server that ended it.
func (e executor) explain(err error) error {
	switch cause := context.Cause(e.ctx); {
	case err == nil:
		return nil
	case e.server.ctx.Err() != nil:
		return fmt.Errorf("the streaming server ends: %w", err)
	case cause != nil && !errors.Is(cause, context.Canceled):
		return cause
	}
	return err
}

// reader, and writer below, return a nil interface for a stream that was not asked for: WebSocket has a channel
// for it anyway.
func reader(wanted bool, r io.Reader) io.Reader {
	if !wanted || r == nil {
		return nil
	}
	return r
}

func (e executor) writer(wanted bool, w io.Writer) io.Writer {
	if !wanted || w == nil {
		return nil
	}
	return patientWriter{w, e}
}

// sizes passes on the sizes of the client's terminal. It always takes the next one, and the reader always gets the
// latest: a reader that does not look must not hold up the client's connection, on which one stream waits for another.
func (e executor) sizes(in <-chan remotecommand.TerminalSize) <-chan pod.TermSize {
	if in == nil {
		return nil
	}
	out := make(chan pod.TermSize, 1)
	go func() {
		defer close(out)
		for {
			select {
			case <-e.ctx.Done():
				return
			case size, ok := <-in:
				if !ok {
					return
				}
				if !e.wanted.TTY {
					continue
				}
				select {
				case <-out: // outdated
				default:
				}
				out <- pod.TermSize{Width: size.Width, Height: size.Height}
			}
		}
	}()
	return out
}
