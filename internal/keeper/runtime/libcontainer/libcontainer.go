// Package libcontainer is the engine that sets up containers with runc's library, in the keeper's process. It also
// updates, pauses, checkpoints and removes containers that the stage has set up.
package libcontainer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // device rules
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/console"
	"berth/internal/keeper/filter"
	"berth/internal/keeper/null"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/runtime/plan"
	"berth/internal/keeper/stage"
	"berth/internal/rawenv"
)

// Engine makes containers with libcontainer in this process.
type Engine struct {
	dir      runtime.Dir
	spawning runtime.Spawning
	filters  *filter.Store
	stages   *plan.Stages
	seccomp  interned

	criuSettings sync.Mutex // held while their file is written
}

var (
	_ runtime.Runtime      = (*Engine)(nil)
	_ runtime.Checkpointer = (*Engine)(nil)
)

// New returns the engine of a keeper with this directory.
func New(dir runtime.Dir, stages *plan.Stages, filters *filter.Store, spawning runtime.Spawning) *Engine {
	return &Engine{dir: dir, spawning: spawning, filters: filters, stages: stages}
}

// interned keeps one copy of each seccomp profile: most containers of a node have the same, of some hundred KiB.
type interned struct {
	mu       sync.Mutex
	profiles map[[sha256.Size]byte]*configs.Seccomp
}

func (i *interned) get(p *specs.LinuxSeccomp) (*configs.Seccomp, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	i.mu.Lock()
	defer i.mu.Unlock()
	if c, ok := i.profiles[sum]; ok {
		return c, nil
	}
	c, err := specconv.SetupSeccomp(p)
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	if i.profiles == nil || len(i.profiles) >= 64 { // profiles of a node that never stops inventing them
		i.profiles = map[[sha256.Size]byte]*configs.Seccomp{}
	}
	i.profiles[sum] = c
	return c, nil
}

// Prepare makes the configuration of a launch, for this engine or the stage.
func (e *Engine) Prepare(c runtime.Container, l *runtime.Launch) error {
	rec := c.Record()
	config, err := plan.Config(e.dir, c.ID(), rec.Systemd, l.Spec)
	if err != nil {
		return err
	}
	if l.Spec.Hooks != nil {
		// Hooks find their container's spec through the bundle that the state they are given names.
		if err := e.dir.WriteBundle(c.ID(), l.Spec); err != nil {
			return err
		}
	}
	if err := own(l, config); err != nil {
		return err
	}
	l.Config = config
	l.Phases.End("specification")
	return nil
}

// partCgroups has binds of cgroup hierarchies (version 1) mounted privately: CRIU cannot restore slaves of the host's.
func partCgroups(config *configs.Config) {
	for _, m := range config.Mounts {
		if m.Device == "cgroup" && len(m.PropagationFlags) == 0 && !cgroups.IsCgroup2UnifiedMode() {
			m.PropagationFlags = []int{unix.MS_PRIVATE}
		}
	}
}

// Start makes a container of a launch that has been prepared.
func (e *Engine) Start(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	if l.Restore != "" {
		return e.restore(c, l)
	}
	p, err := plan.NewProcess(l.Spec.Process)
	if err != nil {
		return err
	}
	p.Init = true
	partCgroups(l.Config)
	join, joinReason := e.stages.Joinable(c.ID(), l.Config)
	if c.Record().Choice == protocol.SetupLibcontainer {
		join, joinReason = nil, l.Reason
	}
	setup := protocol.Setup{Engine: protocol.EngineLibcontainer}
	last, err := e.lastStage(ctx, c, l.Spec, l.Config, p, join)
	if err != nil {
		return err
	}
	if last != nil {
		defer last.Close()
		setup.Engine = protocol.EngineLibcontainerStage
	} else if err := rawenv.Of(p.Env).Refuse("libcontainer"); err != nil {
		return fmt.Errorf("libcontainer sets the container up (%s): %w", l.Reason, err)
	} else if profile := l.Spec.Linux.Seccomp; profile != nil {
		if l.Config.Seccomp, err = e.seccomp.get(profile); err != nil {
			return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
		if join != nil {
			join, joinReason = nil, "libcontainer has loaded the seccomp filter"
		}
	}
	setup.ExecEngine, setup.ExecReason = protocol.EngineLibcontainer, joinReason
	if join != nil {
		setup.ExecEngine, setup.ExecReason = protocol.EngineStage, "it does all that execs of this container need"
	}
	told, err := e.newAgent(ctx, c, l.Config.Seccomp)
	if err != nil {
		return err
	}
	defer told.Close()
	if told != nil {
		l.Config.Seccomp = withListener(l.Config.Seccomp, told.path)
	}
	l.Phases.End("seccomp")
	lib, err := libcontainer.Create(e.dir.States(), c.ID(), l.Config)
	if err != nil {
		return err
	}
	b := &beginning{lib: lib, p: p, l: l, join: join, setup: setup, last: last, told: told}
	if err := e.begin(told.context(ctx), c, b); err != nil {
		err = told.is(err)
		if derr := e.destroy(c, lib); derr != nil {
			c.Log().Warn("remove container that did not start", "error", derr)
		}
		return err
	}
	return nil
}

// beginning is the part of a container's start after libcontainer has created it.
type beginning struct {
	lib   *libcontainer.Container
	p     *libcontainer.Process
	l     *runtime.Launch
	join  *record.Join // nil: the stage starts no execs in it
	setup protocol.Setup
	last  *stage.Last // nil: libcontainer does it all
	told  *agent      // of its seccomp profile; nil: it has none
}

// begin starts the init process of a container that has been created, and lets its program begin. The end of the
// context kills the process.
func (e *Engine) begin(ctx context.Context, c runtime.Container, b *beginning) error {
	l := b.l
	defer func() { l.Phases.End("program") }()
	res, err := start(ctx, b.lib, b.p, l)
	if err == nil {
		if err = b.told.wait(); err == nil && b.told != nil {
			err = e.nameAgent(c, b.told)
		}
		if err != nil {
			abandon(b.p, res)
		}
	}
	l.Phases.End("init")
	if err != nil {
		return err
	}
	res.Setup = b.setup
	if st, err := b.lib.State(); err == nil {
		res.Cgroups = cgroupdir.Recorded(st.CgroupPaths)
		if b.join != nil {
			b.join.Cgroups = maps.Clone(st.CgroupPaths)
			res.Join = b.join
		}
	}
	if err := l.Register(res); err != nil {
		return err
	}
	l.Phases.End("escrow")
	// Nobody reaps the process before the start is over.
	over := context.AfterFunc(ctx, func() { _ = unix.Kill(res.PID, unix.SIGKILL) })
	err = b.lib.Exec()
	if !over() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if b.last == nil {
		return nil
	}
	if err := b.last.Wait(res.PID); err != nil {
		// The process is gone in a moment, and is reaped by the exec that it was registered for.
		_ = unix.Waitid(unix.P_PID, res.PID, nil, unix.WEXITED|unix.WNOWAIT, nil)
		return err
	}
	return nil
}

// abandon kills a process that was started and that nobody has registered.
func abandon(p *libcontainer.Process, res runtime.Started) {
	_ = p.Signal(unix.SIGKILL)
	_, _ = p.Wait()
	if res.Console >= 0 {
		unix.Close(res.Console)
	}
}

// Begun tells whether the program has begun: libcontainer's init process waits at a fifo, which is removed a moment
// after the process is let go on.
func (e *Engine) Begun(c runtime.Container) bool {
	if _, err := os.Lstat(filepath.Join(e.dir.State(c.ID()), "exec.fifo")); errors.Is(err, os.ErrNotExist) {
		return true
	}
	rec := c.Record()
	return runtime.WaitingBegan(&rec)
}

// own gives the pipes to the root of the container's user namespace, who must be able to open them by /proc.
func own(l *runtime.Launch, config *configs.Config) error {
	if !config.Namespaces.Contains(configs.NEWUSER) || l.IO.Out == nil {
		return nil
	}
	uid, err := config.HostRootUID()
	if err != nil {
		return err
	}
	gid, err := config.HostRootGID()
	if err != nil {
		return err
	}
	return l.IO.Own(uid, gid)
}

// start starts a process of a container and takes its terminal, if it has one. A container's init process waits for
// Exec before it becomes the container's program.
func start(
	ctx context.Context, lib *libcontainer.Container, p *libcontainer.Process, l *runtime.Launch,
) (runtime.Started, error) {
	res := runtime.Started{Console: -1}
	// With a terminal they are the process's until it has made it.
	nothing, err := null.Open()
	if err != nil {
		return res, err
	}
	defer nothing.Close()
	p.Stdin, p.Stdout, p.Stderr = cmp.Or(l.IO.In, nothing), cmp.Or(l.IO.Out, nothing), cmp.Or(l.IO.Err, nothing)
	sock, err := console.NewSocket(l.Terminal())
	if err != nil {
		return res, err
	}
	defer sock.Close()
	p.ConsoleSocket = sock.Theirs
	p.SubCgroupPaths = l.Sub
	over := endWith(ctx, l.IO.In, l.IO.Out, l.IO.Err, nothing, sock.Theirs)
	err = lib.Start(p)
	over()
	if err != nil {
		return res, err
	}
	if res.PID, err = p.Pid(); err != nil {
		return res, err
	}
	if res.Console, err = sock.Take(res.PID); err != nil {
		_, _ = p.Wait()
	}
	return res, err
}

// with calls fn with libcontainer's view of a running container. Calls for one container wait for each other, as long
// as their contexts last.
func (e *Engine) with(ctx context.Context, c runtime.Container, fn func(*libcontainer.Container) error) error {
	if err := c.Guard().Lock(ctx); err != nil {
		return err
	}
	defer c.Guard().Unlock()
	lib, err := e.loaded(c)
	if err != nil {
		return err
	}
	return fn(lib)
}

// loaded is libcontainer's view. The caller has locked the guard.
func (e *Engine) loaded(c runtime.Container) (*libcontainer.Container, error) {
	lib, _ := (*c.Loaded()).(*libcontainer.Container)
	if lib == nil {
		if err := e.completeState(c); err != nil {
			return nil, fmt.Errorf("complete the state of container %s: %w", c.ID(), err)
		}
		var err error
		if lib, err = libcontainer.Load(e.dir.States(), c.ID()); err != nil {
			return nil, fmt.Errorf("load container %s: %w", c.ID(), err)
		}
		e.share(lib)
		*c.Loaded() = lib
	}
	return lib, nil
}

// share lets a loaded container use the copy of its seccomp profile that others have too.
func (e *Engine) share(lib *libcontainer.Container) {
	config := lib.Config()
	if config.Seccomp == nil {
		return
	}
	b, err := json.Marshal(config.Seccomp)
	if err != nil {
		return
	}
	sum := sha256.Sum256(append([]byte("loaded:"), b...))
	in := &e.seccomp
	in.mu.Lock()
	defer in.mu.Unlock()
	if p, ok := in.profiles[sum]; ok {
		*config.Seccomp = *p
		return
	}
	if in.profiles == nil {
		in.profiles = map[[sha256.Size]byte]*configs.Seccomp{}
	}
	p := *config.Seccomp
	in.profiles[sum] = &p
}

// Exec starts a further process. The container can see libcontainer's processes before they run its program, and may
// stop them; so no lock is held meanwhile, and the end of the context kills them.
func (e *Engine) Exec(ctx context.Context, c runtime.Container, l *runtime.Launch) error {
	p, err := plan.NewProcess(l.Process)
	if err != nil {
		return err
	}
	if err := rawenv.Of(p.Env).Refuse("libcontainer"); err != nil {
		return fmt.Errorf("libcontainer starts the execs of the container (%s): %w", c.Record().Setup.ExecReason, err)
	}
	var view *libcontainer.Container // of this exec alone: a start holds libcontainer's own lock
	err = e.withoutCheckpoint(ctx, c, func(lib *libcontainer.Container) error {
		st, err := lib.Status()
		if err != nil {
			return err
		}
		switch st {
		case libcontainer.Paused:
			return fmt.Errorf("container %s is paused: %w", c.ID(), errdefs.ErrFailedPrecondition)
		case libcontainer.Stopped:
			return fmt.Errorf("container %s is not running: %w", c.ID(), errdefs.ErrFailedPrecondition)
		}
		if lib, err = e.rescored(c, lib, l.Process.OOMScoreAdj); err != nil {
			return err
		}
		if err := plan.SameUmask(l.Process, lib.Config().Umask); err != nil {
			return err
		}
		view, err = libcontainer.Load(e.dir.States(), c.ID())
		return err
	})
	if err != nil {
		return err
	}
	config := view.Config()
	if err := own(l, &config); err != nil {
		return err
	}
	if l.Traced {
		p.Env = runtime.WithMark(p.Env, l.ExecID)
	}
	told, err := e.newAgent(ctx, c, config.Seccomp)
	if err != nil {
		return err
	}
	defer told.Close()
	if told != nil {
		config.Seccomp.ListenerPath = told.path // of this view alone
	}
	res, err := start(told.context(ctx), view, p, l)
	res.Marked = l.Traced
	if err == nil {
		if err = told.wait(); err != nil {
			abandon(p, res)
		}
	}
	if err != nil {
		return told.is(err)
	}
	if err := l.Register(res); err != nil {
		_ = unix.Kill(res.PID, unix.SIGKILL)
		return err
	}
	return nil
}

// endWith has the end of the context kill those children of this process that have one of the files, until the start
// that it is about is over. libcontainer does not tell which processes it starts, and these come into the container's
// cgroup late.
func endWith(ctx context.Context, files ...*os.File) (over func()) {
	var held []os.FileInfo
	for _, f := range files {
		if f == nil {
			continue
		}
		if info, err := f.Stat(); err == nil {
			held = append(held, info)
		}
	}
	started := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		for killUsers(held); ; killUsers(held) {
			select {
			case <-started:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return func() {
		stop()
		close(started)
	}
}

// killUsers passes over what this process has forked and not executed yet: that has all of its files.
func killUsers(held []os.FileInfo) {
	for _, pid := range procfs.Children() {
		if !strings.HasSuffix(procfs.CommandLine(pid), "\x00init\x00") {
			continue
		}
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		for _, e := range entries {
			its, err := os.Stat(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
			if err == nil && slices.ContainsFunc(held, func(h os.FileInfo) bool { return os.SameFile(h, its) }) {
				_ = unix.Kill(pid, unix.SIGKILL)
				break
			}
		}
	}
}

// rescored is libcontainer's view of a container whose oom_score_adj an update has changed since: libcontainer gives an
// exec the one that it knows. The caller has locked the guard.
func (e *Engine) rescored(c runtime.Container, lib *libcontainer.Container,
	score *int) (*libcontainer.Container, error) {
	config := lib.Config()
	if score == nil || config.OomScoreAdj != nil && *config.OomScoreAdj == *score {
		return lib, nil
	}
	*c.Loaded() = nil
	err := e.editState(c, func(config map[string]json.RawMessage) (changed bool, err error) {
		config["oom_score_adj"] = record.JSON(score)
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("oom_score_adj of an exec in container %s: %w", c.ID(), err)
	}
	return e.loaded(c)
}

// Update changes limits.
func (e *Engine) Update(ctx context.Context, c runtime.Container, res *specs.LinuxResources) error {
	return e.with(ctx, c, func(lib *libcontainer.Container) error {
		config := lib.Config()
		cg := *config.Cgroups
		merged, err := plan.MergeResources(cg.Resources, res)
		if err != nil {
			return err
		}
		// A device rule that was not asked for is left alone; libcontainer refuses to start anything with this set, so
		// the view that has it is thrown away.
		merged.SkipDevices = true
		cg.Resources = merged
		config.Cgroups = &cg
		*c.Loaded() = nil
		return lib.Set(config)
	})
}

// Pause freezes a container.
func (e *Engine) Pause(ctx context.Context, c runtime.Container) error {
	return e.with(ctx, c, func(lib *libcontainer.Container) error {
		if st, err := lib.Status(); err == nil && st == libcontainer.Paused {
			return nil
		}
		err := lib.Pause()
		if errors.Is(err, libcontainer.ErrNotRunning) {
			return fmt.Errorf("container %s: %w: %w", c.ID(), err, errdefs.ErrFailedPrecondition)
		}
		return err
	})
}

// Resume thaws a container.
func (e *Engine) Resume(ctx context.Context, c runtime.Container) error {
	return e.with(ctx, c, func(lib *libcontainer.Container) error {
		err := lib.Resume()
		if errors.Is(err, libcontainer.ErrNotPaused) {
			return nil
		}
		return err
	})
}
