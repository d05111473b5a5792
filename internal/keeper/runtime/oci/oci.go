// Package oci is the engine that sets up containers with the command line of an OCI runtime, such as runc or crun.
package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
)

// Engine makes containers with one OCI runtime binary.
type Engine struct {
	dir      runtime.Dir
	spawning runtime.Spawning
	path     string
	root     string
	systemd  bool
	flags    []string // that the node's configuration names
	sandbox  bool     // the container is in a sandbox: see sandbox.go
	// sandboxes is also set for the container that makes the sandbox: the binary keeps files as runsc does.
	sandboxes bool
}

var _ runtime.Runtime = (*Engine)(nil)

// New returns the engine for the binary that a container's record names.
func New(dir runtime.Dir, spawning runtime.Spawning, r *record.Container) *Engine {
	return &Engine{dir: dir, spawning: spawning, path: r.Runtime, root: r.RuntimeRoot, systemd: r.Systemd,
		flags: r.RuntimeFlags, sandbox: r.Sandbox != "", sandboxes: r.Sandbox != "" || r.Reaper}
}

// bundleVersion is the specification version in the bundles for OCI runtimes. Older runtimes refuse a newer 1.x,
// although they would only have to ignore unknown fields.
const bundleVersion = "1.0.2"

// Start runs create, Register, and start.
func (b *Engine) Start(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	res := runtime.Started{Console: -1, Setup: record.OCISetup(b.path)}
	spec := *l.Spec
	spec.Version = bundleVersion
	if err := b.dir.WriteBundle(c.ID(), &spec); err != nil {
		return err
	}
	pidFile := filepath.Join(b.dir.Bundle(c.ID()), "pid")
	args := []string{"create", "--bundle", b.dir.Bundle(c.ID()), "--pid-file", pidFile}
	terminal, receive, done, err := b.console(c, l.Terminal())
	if err != nil {
		return err
	}
	defer done()
	args = append(append(args, terminal...), c.ID())
	undo := func(err error) error {
		if derr := b.Abort(ctx, c); derr != nil {
			c.Log().Warn("remove container that did not start", "error", derr)
		}
		return err
	}
	streams := l.IO
	if b.sandbox {
		streams = runtime.Stdio{} // the call of start gives them to the container
	}
	if err := b.call(ctx, c, streams, args...); err != nil {
		return undo(err)
	}
	if res.PID, err = readPID(pidFile); err != nil {
		return undo(err)
	}
	if res.Console, err = receive(); err != nil {
		return undo(err)
	}
	if b.sandbox {
		if err := b.startInSandbox(c, l, res); err != nil {
			return undo(err)
		}
		return nil
	}
	if res.Cgroups, err = cgroupdir.OfProcess(res.PID); err != nil {
		if res.Console >= 0 {
			unix.Close(res.Console)
		}
		return undo(err)
	}
	if err := l.Register(res); err != nil {
		return undo(err)
	}
	if err := b.call(ctx, c, runtime.Stdio{}, "start", c.ID()); err != nil {
		return undo(err)
	}
	return nil
}

// Begun says whether the container's program has begun. OCI runtimes report that in different ways, so Begun looks at
// the process's command line: it changes when the waiting process executes the program.
//
// The process of a container in a sandbox is a proxy, whose command line changes when it lets the program begin.
func (b *Engine) Begun(c runtime.Container) bool {
	rec := c.Record()
	return runtime.WaitingBegan(&rec)
}

// readPID reads the number of a process that a runtime has started. It is a process's that can be killed: 0 and
// negative ones stand for many.
func readPID(path string) (int, error) {
	s, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.ParseInt(strings.TrimSpace(string(s)), 10, 32)
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("%s: %.32q is no process of a container", path, s)
	}
	return int(pid), nil
}

// Update runs update.
func (b *Engine) Update(ctx context.Context, c runtime.Container, r *specs.LinuxResources) error {
	js, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if b.sandbox {
		return notInSandbox(c, "limits")
	}
	if err := os.MkdirAll(b.dir.Bundle(c.ID()), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(b.dir.Bundle(c.ID()), "resources-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(js)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return b.call(ctx, c, runtime.Stdio{}, "update", "--resources", f.Name(), c.ID())
}

// Pause runs pause.
func (b *Engine) Pause(ctx context.Context, c runtime.Container) error {
	if b.sandbox {
		return notInSandbox(c, "a pause")
	}
	if cgroupdir.Frozen(c.Record().Cgroups) {
		return nil
	}
	return b.call(ctx, c, runtime.Stdio{}, "pause", c.ID())
}

// Resume runs resume.
func (b *Engine) Resume(ctx context.Context, c runtime.Container) error {
	if !cgroupdir.Frozen(c.Record().Cgroups) {
		return nil
	}
	return b.call(ctx, c, runtime.Stdio{}, "resume", c.ID())
}
