package stream

import (
	"context"
	"fmt"
	"io"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"berth/internal/pod"
)

// executor runs one client's request. The context is its own: the library's does not end with the client's connection.
type executor struct {
	ctx    context.Context
	server *Server
	wanted Wanted
}

var (
	_ remotecommand.Executor = executor{}
	_ remotecommand.Attacher = executor{}
)

// ExecInContainer returns a utilexec.CodeExitError for a command that ends with another code than 0: kubectl exec ends
// with that code then.
func (e executor) ExecInContainer(_ context.Context, _, _, container string, cmd []string, in io.Reader,
	out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	code, err := e.server.cfg.Runtime.Exec(e.ctx, container, pod.ExecOptions{
		Cmd:    cmd,
		TTY:    tty,
		Stdin:  reader(e.wanted.Stdin, in),
		Stdout: writer(e.wanted.Stdout, out),
		Stderr: writer(e.wanted.Stderr, errOut),
		Resize: e.sizes(tty, resize),
	})
	if err != nil {
		return e.explain(err)
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

func (e executor) AttachContainer(_ context.Context, _, _, container string, in io.Reader, out, errOut io.WriteCloser,
	tty bool, resize <-chan remotecommand.TerminalSize) error {
	err := e.server.cfg.Runtime.Attach(e.ctx, container, pod.AttachOptions{
		TTY:    tty,
		Stdin:  reader(e.wanted.Stdin, in),
		Stdout: writer(e.wanted.Stdout, out),
		Stderr: writer(e.wanted.Stderr, errOut),
		Resize: e.sizes(tty, resize),
	})
	return e.explain(err)
}

// explain says why a stream has ended when it was the server that ended it.
func (e executor) explain(err error) error {
	if err != nil && e.server.ctx.Err() != nil {
		return fmt.Errorf("the streaming server ends: %w", err)
	}
	return err
}

// reader and writer return a nil interface for a stream that was not asked for: WebSocket has a channel for it anyway.
func reader(wanted bool, r io.Reader) io.Reader {
	if !wanted || r == nil {
		return nil
	}
	return r
}

func writer(wanted bool, w io.WriteCloser) io.Writer {
	if !wanted || w == nil {
		return nil
	}
	return w
}

// sizes passes on the sizes of the client's terminal. It always takes the next one, and the reader always gets the latest:
// a reader that does not look must not hold up the client's connection, on which one stream waits for another.
func (e executor) sizes(tty bool, in <-chan remotecommand.TerminalSize) <-chan pod.TermSize {
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
				if !tty {
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
