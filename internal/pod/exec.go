package pod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
	"berth/internal/ocispec"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
)

// maxSyncOutput is how much of each stream ExecSync keeps; the rest is read and dropped, as the CRI asks.
const maxSyncOutput = 16 << 20

// killPatience is how long a command that was killed may take to die before its caller is told that it timed out.
const killPatience = 2 * time.Second

// ExecSync runs a command in a container and returns what it wrote. A command that runs longer than timeout (0: no
// limit) is killed with all that it started, and the error is context.DeadlineExceeded.
func (m *Manager) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, exitCode int, err error) {
	var out, errOut limited
	exit, err := m.exec(ctx, id, ExecOptions{Cmd: cmd, Stdout: &out, Stderr: &errOut}, timeout)
	if err != nil {
		return nil, nil, 0, err
	}
	if exit.TimedOut {
		return nil, nil, 0, fmt.Errorf("command %q in container %s timed out after %v: %w",
			cmd, record.ShortID(id), timeout, context.DeadlineExceeded)
	}
	return out.buf.Bytes(), errOut.buf.Bytes(), exit.ExitCode, nil
}

// limited keeps the first maxSyncOutput bytes that are written to it.
type limited struct{ buf bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxSyncOutput - l.buf.Len(); room > 0 {
		l.buf.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// Exec runs a command in a container with the caller's streams and returns its exit code when it has ended and all that it
// wrote is written. When ctx ends first, the command is killed.
func (m *Manager) Exec(ctx context.Context, id string, opts ExecOptions) (int, error) {
	exit, err := m.exec(ctx, id, opts, 0)
	if err != nil {
		return 0, err
	}
	return exit.ExitCode, nil
}

func (m *Manager) exec(ctx context.Context, id string, opts ExecOptions, timeout time.Duration) (*keeper.ExecExit, error) {
	c, err := m.index.container(id)
	if err != nil {
		return nil, err
	}
	if len(opts.Cmd) == 0 {
		return nil, fmt.Errorf("exec in container %s: cmd is empty: %w", record.ShortID(c.id), errdefs.ErrInvalidArgument)
	}
	r := c.Record()
	if r.Phase != record.ContainerRunning {
		return nil, fmt.Errorf("exec in container %s: it is %s: %w", record.ShortID(c.id), r.Phase, errdefs.ErrFailedPrecondition)
	}
	if r.Paused {
		return nil, fmt.Errorf("exec in container %s: %w", record.ShortID(c.id), errPaused)
	}
	process := ocispec.Exec(&specs.Spec{Process: r.Process}, opts.Cmd, opts.TTY)

	req := &keeper.ExecRequest{ContainerID: c.id, ExecID: record.NewID()[:32], Process: process, Timeout: timeout}
	var (
		io     streams
		copies sync.WaitGroup
	)
	defer io.close()
	if opts.TTY {
		if size, ok := firstSize(opts.Resize); ok {
			req.Width, req.Height = size.Width, size.Height
		}
	} else if err := io.open(&opts, req); err != nil {
		return nil, err
	}
	result, err := m.cfg.Keeper.Exec(ctx, req)
	io.closeTheirs()
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", record.ShortID(c.id), notStarted(err))
	}
	done := make(chan struct{}) // closed once the command has ended
	if opts.TTY {
		io.terminal(result.Console)
		go resize(result.Console, opts.Resize, done)
	}
	io.start(&opts, &copies, done)

	wait, stopWaiting := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		wait, stopWaiting = context.WithTimeout(ctx, timeout+killPatience)
	}
	defer stopWaiting()
	exit, err := m.cfg.Keeper.WaitExec(wait, c.id, req.ExecID)
	if err != nil && ctx.Err() == nil && wait.Err() != nil {
		// It was killed and has not died: the container is paused, or a file system does not answer. It dies when that ends.
		exit, err = &keeper.ExecExit{TimedOut: true}, nil
	}
	if err != nil {
		kill, cancel := steps.Undoing(ctx)
		defer cancel()
		if killErr := m.cfg.Keeper.KillExec(kill, c.id, req.ExecID); killErr != nil && !errors.Is(killErr, errdefs.ErrNotFound) {
			m.log.Warn("kill an exec that nobody waits for", "container", record.ShortID(c.id), "error", killErr)
		}
		// The keeper's client keeps a descriptor of it until it is told of its end.
		m.background.Go(func() {
			wait, cancel := context.WithTimeout(m.ctx, steps.UndoTimeout)
			defer cancel()
			_, _ = m.cfg.Keeper.WaitExec(wait, c.id, req.ExecID)
		})
		close(done)
		io.drain()
		return nil, fmt.Errorf("exec in container %s: %w", record.ShortID(c.id), err)
	}
	close(done)
	io.drain()
	// A reader that takes nothing more must not hold a command that has ended for longer than its own call lives.
	finished := make(chan struct{})
	go func() { copies.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-ctx.Done():
	}
	return exit, nil
}

// streams are our ends of a process's standard streams, and its own ends until it has them.
type streams struct {
	in, out, err *os.File
	theirs       []*os.File
}

func (s *streams) open(opts *ExecOptions, req *keeper.ExecRequest) error {
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

func (s *streams) closeTheirs() {
	for _, f := range s.theirs {
		f.Close()
	}
	s.theirs = nil
}

// terminal makes both directions go through a terminal's master side. Input has a descriptor of its own, so that the end
// of input does not end output.
func (s *streams) terminal(console *os.File) {
	s.out = console
	s.in = console
}

func (s *streams) start(opts *ExecOptions, copies *sync.WaitGroup, done <-chan struct{}) {
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
		copies.Go(func() { copyOutput(opts.Stdout, s.out, done) })
	}
	if s.err != nil && opts.Stderr != nil && s.err != s.out {
		copies.Go(func() { copyOutput(opts.Stderr, s.err, done) })
	}
}

// drain lets the copies of output end with what is there now: a daemon that a command has left behind may hold the
// pipe open for ever.
func (s *streams) drain() {
	for _, f := range []*os.File{s.out, s.err} {
		if f != nil {
			_ = f.SetReadDeadline(time.Now())
		}
	}
}

func (s *streams) close() {
	s.closeTheirs()
	for _, f := range []*os.File{s.in, s.out, s.err} {
		if f != nil {
			f.Close()
		}
	}
}

// copyOutput copies until the end of the stream, or, once done is closed, until the stream has nothing more at the moment.
func copyOutput(dst io.Writer, src *os.File, done <-chan struct{}) {
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
	for {
		n := 0
		_ = raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) }) // non-blocking: os.Pipe made it so
		if n <= 0 {
			return
		}
		_, _ = dst.Write(buf[:n])
	}
}

// firstSize takes a size that is there already.
func firstSize(sizes <-chan TermSize) (TermSize, bool) {
	select {
	case size, ok := <-sizes:
		return size, ok
	default:
		return TermSize{}, false
	}
}

// resize follows the size of the client's terminal.
func resize(console *os.File, sizes <-chan TermSize, done <-chan struct{}) {
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
