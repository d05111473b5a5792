package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/audit"
	keeper "berth/internal/keeper/client"
	"berth/internal/metrics"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/record"
	"berth/internal/pod/stdio"
	"berth/internal/undo"
)

// killPatience is how long ExecSync waits for a killed command to end before it reports the timeout.
const killPatience = 2 * time.Second

// ExecSync runs a command in a container and returns its output. A command that runs longer than timeout (0: no limit)
// is killed with all processes that it has started, and the error is context.DeadlineExceeded.
func (m *Manager) ExecSync(ctx context.Context, id string, cmd []string,
	timeout time.Duration) (stdout, stderr []byte, exitCode int, err error) {
	var out, errOut stdio.Buffer
	opts := ExecOptions{Cmd: cmd, Stdout: &out, Stderr: &errOut}
	ended := m.auditExec(ctx, audit.ExecSync, id, &opts)
	counted := m.countExec(metrics.ExecSync)
	exit, err := m.exec(ctx, id, opts, timeout)
	counted(exit, err)
	ended(exit, err)
	if err != nil {
		return nil, nil, 0, err
	}
	if exit.TimedOut {
		return nil, nil, 0, fmt.Errorf("command %q in container %s timed out after %v: %w",
			cmd, record.ShortID(id), timeout, context.DeadlineExceeded)
	}
	return out.Bytes(), errOut.Bytes(), exit.ExitCode, nil
}

// Exec runs a command in a container with the caller's streams and returns its exit code when it has ended and all that
// it wrote is written. When ctx ends first, the command is killed.
func (m *Manager) Exec(ctx context.Context, id string, opts ExecOptions) (int, error) {
	ended := m.auditExec(ctx, audit.Exec, id, &opts)
	counted := m.countExec(metrics.ExecStream)
	exit, err := m.exec(ctx, id, opts, 0)
	counted(exit, err)
	ended(exit, err)
	if err != nil {
		return 0, err
	}
	return exit.ExitCode, nil
}

// countExec counts an exec that begins now. The caller calls what it returns at the end.
func (m *Manager) countExec(kind string) func(*keeper.ExecExit, error) {
	begin := time.Now()
	return func(exit *keeper.ExecExit, err error) {
		if err == nil && exit.TimedOut {
			err = context.DeadlineExceeded
		}
		m.cfg.Metrics.Exec(kind, time.Since(begin), err)
	}
}

func (m *Manager) exec(ctx context.Context, id string, opts ExecOptions,
	timeout time.Duration) (*keeper.ExecExit, error) {
	c, err := m.index.Container(id)
	if err != nil {
		return nil, err
	}
	if len(opts.Cmd) == 0 {
		return nil, fmt.Errorf("exec in container %s: cmd is empty: %w", record.ShortID(c.ID()), errdefs.ErrInvalidArgument)
	}
	r := c.Record()
	if r.Phase != record.ContainerRunning {
		return nil, fmt.Errorf("exec in container %s: it is %s: %w", record.ShortID(c.ID()),
			r.Phase, errdefs.ErrFailedPrecondition)
	}
	if r.Paused {
		return nil, fmt.Errorf("exec in container %s: %w", record.ShortID(c.ID()), errPaused)
	}
	process := ocispec.Exec(&specs.Spec{Process: r.Process}, opts.Cmd, opts.TTY)
	if err := m.execAs(process, &r, &opts.As); err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", record.ShortID(c.ID()), err)
	}
	req := &keeper.ExecRequest{ContainerID: c.ID(), ExecID: record.NewID()[:32], Process: process, Timeout: timeout}
	client := &stdio.Client{TTY: opts.TTY, Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr,
		Resize: opts.Resize}
	var io stdio.Exec
	defer io.Close()
	if err := io.Open(client, req); err != nil {
		return nil, err
	}
	result, err := m.cfg.Keeper.Exec(ctx, req)
	io.CloseTheirs()
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", record.ShortID(c.ID()), notStarted(err))
	}
	done := make(chan struct{}) // closed once the command has ended
	io.Start(client, result.Console, done)

	wait, stopWaiting := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		wait, stopWaiting = context.WithTimeout(ctx, timeout+killPatience)
	}
	defer stopWaiting()
	exit, err := m.cfg.Keeper.WaitExec(wait, c.ID(), req.ExecID)
	if err != nil && ctx.Err() == nil && wait.Err() != nil {
		// It was killed and has not died: the container is paused, or a file system does not answer. It dies when that ends.
		exit, err = &keeper.ExecExit{TimedOut: true}, nil
	}
	if err != nil {
		kill, cancel := undo.Context(ctx)
		defer cancel()
		if killErr := m.cfg.Keeper.KillExec(kill, c.ID(), req.ExecID); killErr != nil &&
			!errors.Is(killErr, errdefs.ErrNotFound) {
			m.log.Warn("kill an exec that nobody waits for", "container_id", c.ID(), "error", killErr)
		}
		// The keeper's client holds a pidfd of the exec until it has learned of the exec's end.
		m.background.Go(func() {
			wait, cancel := context.WithTimeout(m.ctx, undo.Timeout)
			defer cancel()
			_, _ = m.cfg.Keeper.WaitExec(wait, c.ID(), req.ExecID)
		})
		close(done)
		io.Drain()
		return nil, fmt.Errorf("exec in container %s: %w", record.ShortID(c.ID()), err)
	}
	close(done)
	io.Drain()
	// A reader that takes nothing more must not hold a command that has ended for longer than its own call lives.
	io.Wait(ctx)
	return exit, nil
}

// execAs gives an exec the user, variables and directory that its client asks for.
func (m *Manager) execAs(process *specs.Process, r *record.Container, as *model.ExecAs) error {
	if as.User == "" && len(as.Env) == 0 && as.Cwd == "" {
		return nil
	}
	sandbox, err := m.index.Sandbox(r.SandboxID)
	if err != nil {
		return err
	}
	pod := sandbox.Record()
	namespace := ocispec.UserNamespace(r.Config.Security.Namespaces.User, pod.Config.Security.Namespaces.User)
	return ocispec.ApplyExecAs(process, as, m.dirs.Rootfs(&pod, r.ID), namespace)
}
