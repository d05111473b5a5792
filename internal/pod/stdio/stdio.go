// Package stdio owns the pipes and terminals that connect clients with processes of containers: those of execs and
// those of attached clients.
package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
)

// Size is the size of a terminal in characters.
type Size struct {
	Width, Height uint16
}

// Client has the streams of a client. A nil one is not wanted. With TTY, output comes on Stdout alone and Resize,
// where it is not nil, changes the terminal's size.
type Client struct {
	TTY    bool
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Resize <-chan Size
}

// Exec has our ends of the standard streams of an exec's process, and the process's own ends until the keeper has them.
// It is used once: Open, CloseTheirs, Start, Drain and Wait when the process has ended, and Close in any case.
type Exec struct {
	in, out, err *os.File
	theirs       []*os.File
	copies       sync.WaitGroup // of output
}

// Open makes the pipes that a client wants, or asks for a terminal, and adds them to a request.
func (s *Exec) Open(opts *Client, req *keeper.ExecRequest) error {
	if opts.TTY {
		if size, ok := firstSize(opts.Resize); ok {
			req.Width, req.Height = size.Width, size.Height
		}
		return nil
	}
	pipe := func(write bool) (ours, theirs *os.File, err error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, fmt.Errorf("pipe: %w", err)
		}
		if write {
			ours, theirs = w, r
		} else {
			ours, theirs = r, w
		}
		s.theirs = append(s.theirs, theirs)
		return ours, theirs, nil
	}
	var err error
	if opts.Stdin != nil {
		if s.in, req.Stdin, err = pipe(true); err != nil {
			return err
		}
	}
	if opts.Stdout != nil {
		if s.out, req.Stdout, err = pipe(false); err != nil {
			return err
		}
	}
	if opts.Stderr != nil {
		if s.err, req.Stderr, err = pipe(false); err != nil {
			return err
		}
	}
	return nil
}

// CloseTheirs closes the process's ends, which the keeper has by then.
func (s *Exec) CloseTheirs() {
	for _, f := range s.theirs {
		f.Close()
	}
	s.theirs = nil
}

// terminal makes both directions go through a terminal's master side. Input has a descriptor of its own, so that the
// end of input does not end output.
func (s *Exec) terminal(console *os.File) {
	s.out = console
	s.in = console
}

// Start copies in the background. console is the terminal that the keeper has made, where the client wants one; done is
// to be closed when the process has ended.
func (s *Exec) Start(opts *Client, console *os.File, done <-chan struct{}) {
	if opts.TTY {
		s.terminal(console)
		go Resize(console, opts.Resize, done)
	}
	if s.in != nil && opts.Stdin != nil {
		in, tty := s.in, opts.TTY
		go func() { // reading the client's input has no end that we could wait for
			_, _ = io.Copy(in, opts.Stdin)
			if tty {
				return // the end of the client's input is no hang-up
			}
			in.Close()
		}()
	}
	if s.out != nil && opts.Stdout != nil {
		s.copies.Go(func() { copyOutput(opts.Stdout, s.out, opts.TTY, done) })
	}
	if s.err != nil && opts.Stderr != nil && s.err != s.out {
		s.copies.Go(func() { copyOutput(opts.Stderr, s.err, false, done) })
	}
}

// Wait waits until all output is copied. It returns the error of ctx if that ends before.
func (s *Exec) Wait(ctx context.Context) error {
	finished := make(chan struct{})
	go func() { s.copies.Wait(); close(finished) }()
	select {
	case <-finished:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Drain is called when the process has ended: copying ends with the output that is in the pipes now. A daemon that the
// command has left behind may hold the pipe open for ever.
func (s *Exec) Drain() {
	for _, f := range []*os.File{s.out, s.err} {
		if f != nil {
			_ = f.SetReadDeadline(time.Now())
		}
	}
}

// Close closes all that is open. A copy that still runs ends with that.
func (s *Exec) Close() {
	s.CloseTheirs()
	for _, f := range []*os.File{s.in, s.out, s.err} {
		if f != nil {
			f.Close()
		}
	}
}

// terminalMost is more than the kernel holds of a terminal's output, in bytes.
const terminalMost = 128 << 10

// copyOutput copies until the end of the stream, or, once done is closed, what the stream has at that moment.
func copyOutput(dst io.Writer, src *os.File, terminal bool, done <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				dst = io.Discard // the client is gone; the command must not wait for it
			}
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return // the end; for a terminal that is EIO
		}
		select {
		case <-done:
		default:
			return
		}
		break
	}
	raw, err := src.SyscallConn()
	if err != nil {
		return
	}
	// A process that the command has left behind may write faster than the client reads. So what is still copied is
	// bounded by what is there now. A terminal does not say how much that is.
	left := -1 // not known yet
	for left != 0 {
		n := 0
		_ = raw.Control(func(fd uintptr) {
			if n, _ = unix.Read(int(fd), buf); n <= 0 || left >= 0 { // non-blocking: os.Pipe made it so
				return
			}
			rest := terminalMost
			if !terminal {
				rest, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			}
			left = n + rest
		})
		if n <= 0 {
			return
		}
		_, _ = dst.Write(buf[:n])
		left = max(left-n, 0)
	}
}

// firstSize takes a size that is there already.
func firstSize(sizes <-chan Size) (Size, bool) {
	select {
	case size, ok := <-sizes:
		return size, ok
	default:
		return Size{}, false
	}
}

// Resize gives a terminal the sizes that its client sends, until done is closed.
func Resize(console *os.File, sizes <-chan Size, done <-chan struct{}) {
	raw, err := console.SyscallConn()
	if err != nil || sizes == nil {
		return
	}
	for {
		select {
		case <-done:
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			_ = raw.Control(func(fd uintptr) {
				_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
			})
		}
	}
}
