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
	"berth/internal/ocispec"
	"berth/internal/pod/index"
	"berth/internal/pod/prepared"
	"berth/internal/pod/record"
	"berth/internal/pod/stdio"
	"berth/internal/undo"
)

// killPatience is how long ExecSync waits for a killed command to end before it reports the timeout.
const killPatience = 2 * time.Second

// Exec runs a command in a container with the caller's streams and returns its exit code when it has ended and all that
// it wrote is written. When ctx ends first, the command is killed.
func (m *Manager) Exec(ctx context.Context, id string, opts ExecOptions) (int, error) {
	e := &execution{m: m, kind: audit.Exec, opts: opts}
	exit, err := e.run(ctx, id, metrics.ExecStream)
	if err != nil {
		return 0, err
	}
	return exit.ExitCode, nil
}

// execution is one command that is run in a container.
type execution struct {
	m       *Manager
	kind    string // in the audit
	opts    ExecOptions
	timeout time.Duration // 0: none

	container *index.Container
	request   *keeper.ExecRequest
}

func (e *execution) wrap(err error) error {
	return fmt.Errorf("exec in container %s: %w", record.ShortID(e.container.ID()), err)
}

// run runs the command, writes down that it has run, and counts it as a kind of metrics.
func (e *execution) run(ctx context.Context, id, kind string) (*keeper.ExecExit, error) {
	ended := e.m.auditor().exec(ctx, e.kind, id, &e.opts)
	begin := time.Now()
	exit, err := e.execute(ctx, id)
	failure := err
	if err == nil && exit.TimedOut {
		failure = context.DeadlineExceeded
	}
	e.m.cfg.Metrics.Exec(kind, time.Since(begin), failure)
	ended(exit, err)
	return exit, err
}

func (e *execution) execute(ctx context.Context, id string) (exit *keeper.ExecExit, err error) {
	if e.container, err = e.m.index.Container(id); err != nil {
		return nil, err
	}
	if err := e.prepare(ctx); err != nil {
		return nil, e.wrap(err)
	}
	client := &stdio.Client{TTY: e.opts.TTY, Stdin: e.opts.Stdin, Stdout: e.opts.Stdout, Stderr: e.opts.Stderr,
		Resize: e.opts.Resize}
	var io stdio.Exec
	defer io.Close()
	if err := io.Open(client, e.request); err != nil {
		return nil, err
	}
	started := e.m.prepared.Busy(prepared.Exec)
	result, err := e.m.cfg.Keeper.Exec(ctx, e.request)
	started()
	io.CloseTheirs()
	if err != nil {
		return nil, e.wrap(notStarted(e.m.ofAgent(e.container, err)))
	}
	done := make(chan struct{}) // closed once the command has ended
	io.Start(client, result.Console, done)
	exit, err = e.wait(ctx)
	close(done)
	io.Drain()
	if err != nil {
		return nil, e.wrap(err)
	}
	// A reader that takes nothing more must not hold a command that has ended for longer than its own call lives. Its
	// exit code would tell a client that still reads that it has all of the output.
	if err := io.Wait(ctx); err != nil {
		return nil, e.wrap(fmt.Errorf("the command has ended, but not all of its output was sent: %w", err))
	}
	return exit, nil
}

// prepare makes the request to the keeper, if the container can have a command.
func (e *execution) prepare(ctx context.Context) error {
	if len(e.opts.Cmd) == 0 {
		return fmt.Errorf("cmd is empty: %w", errdefs.ErrInvalidArgument)
	}
	r := e.container.Record()
	if r.Phase != record.ContainerRunning {
		return fmt.Errorf("it is %s: %w", r.Phase, errdefs.ErrFailedPrecondition)
	}
	if r.Paused {
		return errPaused
	}
	own := r.Inherited()
	if own == nil { // the record is of an earlier version, or an older one of two files
		spec, err := e.container.ReadSpec()
		if err == nil && spec.Process == nil {
			err = errors.New("it has no process")
		}
		if err != nil {
			return fmt.Errorf("its record does not say what a command in it inherits, nor does its specification: %v: %w", err,
				errdefs.ErrFailedPrecondition)
		}
		own = spec.Process
	}
	if err := e.m.ensureProfile(ctx, own); err != nil {
		return err
	}
	process := ocispec.Exec(&specs.Spec{Process: own}, e.opts.Cmd, e.opts.TTY)
	if as := &e.opts.As; as.User != "" || len(as.Env) > 0 || as.Cwd != "" {
		pod := e.container.Sandbox.Record()
		namespace := ocispec.UserNamespace(r.Config.Security.Namespaces.User, pod.Config.Security.Namespaces.User)
		if err := ocispec.ApplyExecAs(ctx, process, as, e.m.dirs.Rootfs(&pod, r.ID), r.RemoteLayers, namespace); err != nil {
			return err
		}
	}
	e.request = &keeper.ExecRequest{
		ContainerID: r.ID, ExecID: record.NewID()[:32], Process: process, Timeout: e.timeout,
	}
	return nil
}

// wait waits for the command's end, and kills it where the caller does not wait so long.
func (e *execution) wait(ctx context.Context) (*keeper.ExecExit, error) {
	m, id, exec := e.m, e.request.ContainerID, e.request.ExecID
	limited, cancel := ctx, context.CancelFunc(func() {})
	if e.timeout > 0 {
		limited, cancel = context.WithTimeout(ctx, e.timeout+killPatience)
	}
	defer cancel()
	exit, err := m.cfg.Keeper.WaitExec(limited, id, exec)
	if err == nil {
		return exit, nil
	}
	// The keeper has the same deadline, and may answer first that it is over.
	if ctx.Err() == nil && (limited.Err() != nil || e.timeout > 0 && errors.Is(err, context.DeadlineExceeded)) {
		// It was killed and has not died: the container is paused, or a file system does not answer. It dies when that ends.
		return &keeper.ExecExit{TimedOut: true}, nil
	}
	kill, cancelKill := undo.Context(ctx)
	defer cancelKill()
	if killErr := m.cfg.Keeper.KillExec(kill, id, exec); killErr != nil && !errors.Is(killErr, errdefs.ErrNotFound) {
		m.log.Warn("kill an exec that nobody waits for", "container_id", id, "error", killErr)
	}
	// The keeper's client holds a pidfd of the exec until it has learned of the exec's end.
	m.background.Go(func() {
		wait, cancel := context.WithTimeout(m.ctx, undo.Timeout)
		defer cancel()
		_, _ = m.cfg.Keeper.WaitExec(wait, id, exec)
	})
	return nil, err
}
