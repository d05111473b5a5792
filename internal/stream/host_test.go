package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"

	"berth/internal/pod"
)

var _ Runtime = (*pod.Manager)(nil)

func TestMain(m *testing.M) {
	LogLibraries(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// host runs on this machine what a node runs in containers.
type host struct {
	ended chan string // forwarded connections that ended, and commands that ended because the client had gone
}

func newHost() *host { return &host{ended: make(chan string, 1000)} }

func (h *host) Exec(ctx context.Context, container string, opts pod.ExecOptions) (int, error) {
	if container == "gone" {
		return 0, errors.New("container gone: not found")
	}
	cmd := exec.CommandContext(ctx, opts.Cmd[0], opts.Cmd[1:]...)
	cmd.WaitDelay = 20 * time.Second
	var copies sync.WaitGroup
	if opts.TTY {
		end, err := h.terminal(cmd, opts, &copies)
		if err != nil {
			return 0, err
		}
		defer end()
	} else if err := h.pipes(cmd, opts); err != nil {
		return 0, err
	}
	err := cmd.Wait()
	copies.Wait()
	if ctx.Err() != nil {
		h.ended <- container
		return 0, ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

func (h *host) pipes(cmd *exec.Cmd, opts pod.ExecOptions) error {
	cmd.Stdout, cmd.Stderr = opts.Stdout, opts.Stderr
	if opts.Stdin == nil {
		return cmd.Start()
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	go func() {
		io.Copy(stdin, opts.Stdin)
		stdin.Close()
	}()
	return cmd.Start()
}

func (h *host) terminal(cmd *exec.Cmd, opts pod.ExecOptions, copies *sync.WaitGroup) (end func(), err error) {
	master, path, err := console.NewPty()
	if err != nil {
		return nil, err
	}
	slave, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	var resizes sync.WaitGroup
	resizes.Go(func() {
		for {
			select {
			case size, ok := <-opts.Resize:
				if !ok {
					return
				}
				master.Resize(console.WinSize{Width: size.Width, Height: size.Height})
			case <-ended:
				return
			}
		}
	})
	if opts.Stdin != nil {
		go io.Copy(master, opts.Stdin)
	}
	copies.Go(func() { io.Copy(opts.Stdout, master) })
	return func() {
		close(ended)
		resizes.Wait()
		master.Close()
	}, nil
}

// Attach answers each line.
func (h *host) Attach(ctx context.Context, container string, opts pod.AttachOptions) error {
	code, err := h.Exec(ctx, container, pod.ExecOptions{
		Cmd:    []string{"sh", "-c", `while read line; do echo "heard $line"; done`},
		Stdin:  opts.Stdin,
		Stdout: opts.Stdout,
		Stderr: opts.Stderr,
	})
	if code != 0 {
		return fmt.Errorf("exit code %d", code)
	}
	return err
}

// StartAttached tells the size of the terminal, and does what Attach does.
func (h *host) StartAttached(ctx context.Context, container string, size pod.TermSize, opts pod.AttachOptions) error {
	fmt.Fprintf(opts.Stdout, "started with %dx%d\n", size.Width, size.Height)
	return h.Attach(ctx, container, opts)
}

func (h *host) PortForward(ctx context.Context, sandbox string, port int32, conn io.ReadWriteCloser) error {
	target, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer target.Close()
	stop := context.AfterFunc(ctx, func() { target.Close() })
	defer stop()
	toPod := make(chan struct{})
	go func() {
		defer close(toPod)
		io.Copy(target, conn)
		target.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(conn, target)
	conn.(interface{ CloseWrite() error }).CloseWrite()
	conn.Close()
	<-toPod
	h.ended <- sandbox
	return nil
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	if cfg.Runtime == nil {
		cfg.Runtime = newHost()
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}
