package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/null"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/proxy"
	"berth/internal/keeper/runtime"
)

// A container in a sandbox, such as one of gVisor, is no process of the kernel's. Its create prints the process of the
// sandbox, and only the binary's wait tells of its end. So the keeper has a proxy of it: see package proxy.

// innerSuffix is at the end of the file with the ID that an exec has in its container.
const innerSuffix = ".inner"

var _ runtime.Signaller = (*Engine)(nil)

// notInSandbox is the error of a call that the runtime can only make for the whole sandbox, or not at all.
func notInSandbox(c runtime.Container, what string) error {
	return fmt.Errorf("container %s is in a sandbox of an OCI runtime, which has no such thing as %s of one container: %w",
		c.ID(), what, errdefs.ErrNotImplemented)
}

// startInSandbox goes on with a container that is created. created.PID is the process of the sandbox.
func (b *Engine) startInSandbox(c runtime.Container, l *runtime.Launch, created runtime.Started) (err error) {
	res := created
	res.Sandbox = created.PID
	registered := false
	defer func() {
		if !registered && res.Console >= 0 {
			unix.Close(res.Console)
		}
	}()
	rec := c.Record()
	m, err := cgroupdir.OfSpec(c.ID(), rec.CgroupsPath, rec.Systemd)
	if err != nil {
		return err
	}
	if m != nil {
		res.Cgroups = cgroupdir.Recorded(m.GetPaths())
	}
	logFile, err := b.newLog(b.dir.Bundle(c.ID()))
	if err != nil {
		return err
	}
	defer os.Remove(logFile)
	nothing, err := null.Open()
	if err != nil {
		return err
	}
	defer nothing.Close()
	end := b.spawning()
	defer end()
	p, err := proxy.Start(string(b.dir), &proxy.Request{
		ID: c.ID(), Command: b.command(), Env: environment(), Log: logFile, Sandbox: res.Sandbox,
		Streams: [3]*os.File{cmp.Or(l.IO.In, nothing), cmp.Or(l.IO.Out, nothing), cmp.Or(l.IO.Err, nothing)},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	res.PID = p.PID
	registered = true // what Register fails with, it has closed or left to Unregister
	if err := l.Register(res); err != nil {
		if !l.Unregister() {
			_ = unix.Kill(p.PID, unix.SIGKILL) // it is reaped as an orphan
		}
		return err
	}
	if err := p.Go(context.Background(), runtimeLimit); err != nil {
		if errors.Is(err, proxy.ErrNotStarted) {
			if msg := lastMessage(logFile); msg != "" {
				return fmt.Errorf("%s start: %s", filepath.Base(b.path), msg)
			}
		}
		return fmt.Errorf("%s: %w", filepath.Base(b.path), err)
	}
	return nil
}

// killLimit is how long a call of kill may take. The keeper ends a sandbox that has not killed a container by then.
const killLimit = 30 * time.Second

// Signal runs kill. The error is context.DeadlineExceeded if the sandbox does not answer.
func (b *Engine) Signal(ctx context.Context, c runtime.Container, sig unix.Signal, all bool) error {
	args := []string{"kill"}
	if all {
		args = append(args, "--all")
	}
	args = append(args, c.ID(), strconv.Itoa(int(sig)))
	return b.unlessEnded(c, b.callWithin(ctx, killLimit, c, runtime.Stdio{}, args...))
}

// KillExec runs kill for one process.
func (b *Engine) KillExec(ctx context.Context, c runtime.Container, _ string, inner int) error {
	return b.unlessEnded(c, b.callWithin(ctx, killLimit, c, runtime.Stdio{}, "kill", "--pid", strconv.Itoa(inner),
		c.ID(), strconv.Itoa(int(unix.SIGKILL))))
}

// unlessEnded is nil if the container's proxy has ended: there is nothing to send a signal to any more. A sandbox that
// does not answer may go on.
func (b *Engine) unlessEnded(c runtime.Container, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if rec := c.Record(); err != nil && rec.PID != 0 && !pidfd.Alive(rec.PID, rec.Start) {
		return nil
	}
	return err
}
