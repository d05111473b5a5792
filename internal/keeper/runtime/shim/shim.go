// Package shim is the engine that sets up containers with one of containerd's shims, such as those of runc, Kata
// Containers, gVisor and WebAssembly. A shim is a daemon, one for each pod, that is called over a socket in
// containerd's task protocol, of version 2 or 3.
//
// The pod's init is the first container: for it the shim is started, and with it the shim ends. All further containers
// of the pod are made by that shim. Each container, and each exec, has a proxy (package proxy), which is its process to
// the keeper: the shim is the parent of the real one, if there is one. The shim opens the standard streams of a
// container by their paths below /proc/PID/fd of the proxy, so that they are the pipes which all containers have.
package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	api "berth/api/shim"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/null"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/proxy"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
)

// Engine makes containers with one shim.
type Engine struct {
	dir      runtime.Dir
	spawning runtime.Spawning
	path     string
	shim     record.Shim // as far as it is known
	first    bool        // the container is the pod's init
	sandbox  string      // the ID of the pod's init; empty: it is the container
}

var (
	_ runtime.Runtime   = (*Engine)(nil)
	_ runtime.Signaller = (*Engine)(nil)
)

// New returns the engine for the shim that a container's record names.
func New(dir runtime.Dir, spawning runtime.Spawning, r *record.Container) *Engine {
	return &Engine{dir: dir, spawning: spawning, path: r.Runtime, shim: *r.Shim, first: r.Sandbox == "",
		sandbox: r.Sandbox}
}

const (
	// bundleVersion is that of the specification, as in package oci.
	bundleVersion = "1.0.2"

	startLimit = 2 * time.Minute  // of what makes a container: a virtual machine boots meanwhile
	callLimit  = 10 * time.Second // of the other calls

	killLimit    = 3 * time.Second // of a call that kills
	endExecLimit = 3 * time.Second // of ending an exec whose start has failed
)

// Types of what is sent as a protobuf Any.
const (
	processType   = "types.containerd.io/opencontainers/runtime-spec/1/Process"
	resourcesType = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"
)

// Start starts the shim, if the container is the pod's first, makes the container, calls Register, and lets it begin.
func (b *Engine) Start(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	defer b.spawning()()
	err := b.start(ctx, c, l)
	if err == nil {
		return nil
	}
	if !l.Unregister() {
		killProxies(c.ID()) // they are reaped as orphans
	}
	if aerr := b.abort(ctx, c); aerr != nil {
		c.Log().Warn("remove container that did not start", "error", aerr)
	}
	return err
}

func (b *Engine) start(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	spec := *l.Spec
	spec.Version = bundleVersion
	if err := b.dir.WriteBundle(c.ID(), &spec); err != nil {
		return err
	}
	var log, events *os.File
	if b.first {
		var err error
		if log, err = b.openLog(c.ID()); err != nil {
			return err
		}
		defer log.Close()
		if events, err = b.listen(c.ID()); err != nil {
			return err
		}
		defer events.Close()
		if err := b.launch(ctx, c); err != nil {
			return err
		}
	}
	rec := c.Record()
	p, err := b.startProxy(&proxied{id: c.ID(), terminal: l.Terminal(), size: spec.Process.ConsoleSize, io: l.IO,
		log: log, events: events})
	if err != nil {
		return err
	}
	defer p.Close()
	res := runtime.Started{PID: p.PID, Console: -1, Setup: record.ShimSetup(b.path), Shim: &b.shim}
	request := &api.CreateTaskRequest{
		Id: c.ID(), Bundle: b.dir.Bundle(c.ID()), Terminal: l.Terminal(), Stdin: p.in, Stdout: p.out, Stderr: p.err,
		Options: b.options(),
	}
	var created api.CreateTaskResponse
	if err := b.call(ctx, startLimit, "Create", request, &created); err != nil {
		p.dropConsole()
		return err
	}
	res.Sandbox = int(created.Pid)
	m, err := cgroupdir.OfSpec(c.ID(), rec.CgroupsPath, rec.Systemd)
	if err != nil {
		p.dropConsole()
		return err
	}
	if m != nil {
		res.Cgroups = cgroupdir.Recorded(m.GetPaths())
	}
	if res.Console, err = p.takeConsole(); err != nil {
		return err
	}
	if err := l.Register(res); err != nil {
		return err
	}
	return b.goAhead(ctx, p)
}

// goAhead lets the program begin.
func (b *Engine) goAhead(ctx context.Context, p *running) error {
	err := p.Go(ctx, startLimit)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(b.path), err)
	}
	return nil
}

// options are those of the runtime; nil: there are none.
func (b *Engine) options() *anypb.Any {
	if b.shim.OptionsType == "" {
		return nil
	}
	return &anypb.Any{TypeUrl: b.shim.OptionsType, Value: b.shim.Options}
}

// Begun looks at the command line of the proxy, which changes when it lets the program begin.
func (b *Engine) Begun(c runtime.Container) bool {
	rec := c.Record()
	return runtime.WaitingBegan(&rec)
}

// Exec makes an exec, calls Register, and lets it begin.
func (b *Engine) Exec(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	if cgroupdir.Frozen(c.Record().Cgroups) {
		return fmt.Errorf("container %s is paused: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	defer b.spawning()()
	js, err := json.Marshal(l.Process)
	if err != nil {
		return err
	}
	p, err := b.startProxy(&proxied{id: c.ID(), exec: l.ExecID, terminal: l.Terminal(), size: l.Process.ConsoleSize,
		io: l.IO})
	if err != nil {
		return err
	}
	defer p.Close()
	undo := func(err error) error {
		if !l.Unregister() {
			_ = unix.Kill(p.PID, unix.SIGKILL) // it is reaped as an orphan
		}
		b.endExec(c, l.ExecID)
		return err
	}
	request := &api.ExecProcessRequest{
		Id: c.ID(), ExecId: l.ExecID, Terminal: l.Terminal(), Stdin: p.in, Stdout: p.out, Stderr: p.err,
		Spec: &anypb.Any{TypeUrl: processType, Value: js},
	}
	err = b.call(ctx, startLimit, "Exec", request, &api.Empty{})
	if errdefs.IsAlreadyExists(err) { // the keeper that had it made was killed before the command began
		b.endExec(c, l.ExecID)
		err = b.call(ctx, startLimit, "Exec", request, &api.Empty{})
	}
	if err != nil {
		p.dropConsole()
		return undo(err)
	}
	terminal, err := p.takeConsole()
	if err != nil {
		return undo(err)
	}
	if err := l.Register(runtime.Started{PID: p.PID, Console: terminal, Waits: true}); err != nil {
		return undo(err)
	}
	if err := b.goAhead(ctx, p); err != nil {
		return undo(err)
	}
	return nil
}

// endExec kills an exec that has no proxy any more, and has the shim forget it.
func (b *Engine) endExec(c runtime.Container, execID string) {
	ctx, cancel := context.WithTimeout(context.Background(), endExecLimit)
	defer cancel()
	_ = b.KillExec(ctx, c, execID, 0) // one that has not begun cannot be killed
	var err error
	for {
		err = b.call(ctx, callLimit, "Delete", &api.TaskRequest{Id: c.ID(), ExecId: execID}, &api.Empty{})
		if err == nil || !stillRuns(err) {
			break
		}
		if sleep(ctx) != nil {
			break
		}
	}
	if err != nil && !errdefs.IsNotFound(err) && !errors.Is(err, errGone) {
		c.Log().Warn("remove an exec that did not start", "exec_id", execID, "error", err)
	}
}

// sleep waits a moment. The error is the context's.
func sleep(ctx context.Context) error {
	select {
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Update has the shim change the limits.
func (b *Engine) Update(ctx context.Context, c runtime.Container, r *specs.LinuxResources) error {
	js, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return b.call(ctx, callLimit, "Update", &api.UpdateTaskRequest{
		Id: c.ID(), Resources: &anypb.Any{TypeUrl: resourcesType, Value: js},
	}, &api.Empty{})
}

// Pause has the shim freeze the container.
func (b *Engine) Pause(ctx context.Context, c runtime.Container) error {
	if cgroupdir.Frozen(c.Record().Cgroups) {
		return nil
	}
	return b.call(ctx, callLimit, "Pause", &api.TaskRequest{Id: c.ID()}, &api.Empty{})
}

// Resume has the shim thaw the container.
func (b *Engine) Resume(ctx context.Context, c runtime.Container) error {
	err := b.call(ctx, callLimit, "Resume", &api.TaskRequest{Id: c.ID()}, &api.Empty{})
	if err != nil && !cgroupdir.Frozen(c.Record().Cgroups) {
		return nil
	}
	return err
}

// Signal has the shim send a signal. If a shim does not answer when it is to kill a container, the processes in the
// container's cgroup are killed, and its proxy. The shim is killed itself if the container is the pod's init: all of
// the pod is to end.
func (b *Engine) Signal(ctx context.Context, c runtime.Container, sig unix.Signal, all bool) error {
	limit := callLimit
	if sig == unix.SIGKILL {
		limit = killLimit
	}
	err := b.call(ctx, limit, "Kill", &api.KillRequest{Id: c.ID(), Signal: uint32(sig), All: all}, &api.Empty{})
	switch rec := c.Record(); {
	case errdefs.IsNotFound(err) || errors.Is(err, errGone):
		return nil // it has ended, or ends with its cgroup
	case err == nil || rec.PID != 0 && !pidfd.Alive(rec.PID, rec.Start):
		return nil
	}
	if sig != unix.SIGKILL || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if b.first {
		c.Log().Warn("the shim of a pod that is to end does not answer: it is killed", "pid", b.shim.PID)
		return b.killShim()
	}
	c.Log().Warn("the shim of a container that is to end does not answer: its processes are killed without it",
		"pid", b.shim.PID)
	rec := c.Record()
	err = cgroupdir.KillAll(rec.Cgroups)
	if proc := c.Process(); proc != nil {
		if perr := proc.Signal(unix.SIGKILL); perr != nil && !errors.Is(perr, os.ErrProcessDone) &&
			!errors.Is(perr, os.ErrClosed) {
			err = errors.Join(err, perr)
		}
	}
	return err
}

// KillExec has the shim kill the first process of an exec. What that has started, and is in the container's cgroup, is
// killed with it.
func (b *Engine) KillExec(ctx context.Context, c runtime.Container, execID string, _ int) error {
	request := &api.TaskRequest{Id: c.ID(), ExecId: execID}
	var state api.StateResponse
	// gVisor's shim does not answer while something that the exec has started holds the output of an exec that has ended.
	if err := b.call(ctx, killLimit, "State", request, &state); err != nil {
		if errdefs.IsNotFound(err) || errors.Is(err, errGone) {
			return nil
		}
		return err
	}
	var family []int
	if state.Pid > 1 {
		family = cgroupdir.Family(int(state.Pid), c.Record().Cgroups)
	}
	err := b.call(ctx, callLimit, "Kill", &api.KillRequest{Id: c.ID(), ExecId: execID, Signal: uint32(unix.SIGKILL)},
		&api.Empty{})
	for _, pid := range family {
		cgroupdir.Signal(cgroupdir.Members(c.Record().Cgroups), pid, unix.SIGKILL)
	}
	if errdefs.IsNotFound(err) || errors.Is(err, errGone) {
		return nil
	}
	return err
}

// proxied is what a proxy is to stand for.
type proxied struct {
	id, exec string
	terminal bool
	size     *specs.Box // of the terminal; nil: the default
	io       runtime.Stdio
	// Of the pod's init; nil for others:
	log, events *os.File
}

// running is a proxy, with the paths by which the shim opens the standard streams.
type running struct {
	*proxy.Proxy
	in, out, err string
	console      *os.File // the master of the terminal; nil: none
}

// takeConsole returns the descriptor of the terminal's master, which is the caller's from then on; -1: there is none.
func (p *running) takeConsole() (int, error) {
	if p.console == nil {
		return -1, nil
	}
	defer p.dropConsole()
	fd, err := unix.FcntlInt(p.console.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("fcntl", err)
}

func (p *running) dropConsole() {
	if p.console != nil {
		p.console.Close()
		p.console = nil
	}
}

// startProxy starts a proxy, which waits for Go.
func (b *Engine) startProxy(of *proxied) (_ *running, err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	request := &proxy.Request{ID: of.id, Sandbox: b.shim.PID, Shim: &proxy.Shim{
		Socket: b.shim.Address, Service: b.service(), ExecID: of.exec, Log: of.log, Events: of.events,
	}}
	if of.events != nil {
		request.Shim.Bundles = b.dir.Bundles()
	}
	nothing, err := null.Open()
	if err != nil {
		return nil, err
	}
	files = append(files, nothing)
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err == nil {
			files = append(files, r, w)
		}
		return r, w, err
	}
	request.Streams = [3]*os.File{nothing, cmp.Or(of.io.Out, nothing), cmp.Or(of.io.Err, nothing)}
	request.Shim.Input = of.io.In
	out := &running{}
	if of.terminal {
		var slave *os.File
		if out.console, slave, err = openTerminal(of.size); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				out.dropConsole()
			}
		}()
		files = append(files, slave)
		request.Shim.Input = slave
		if request.Shim.FromOutput, request.Streams[1], err = pipe(); err != nil {
			return nil, err
		}
	}
	if request.Shim.Input != nil {
		if request.Streams[0], request.Shim.ToInput, err = pipe(); err != nil {
			return nil, err
		}
	}
	if out.Proxy, err = proxy.Start(string(b.dir), request); err != nil {
		return nil, err
	}
	if request.Shim.Input != nil {
		out.in = out.Path(0)
	}
	out.out = out.Path(1)
	if !of.terminal {
		out.err = out.Path(2)
	}
	return out, nil
}
