// Package stage is the engine whose containers and execs are set up by the stage, the keeper's own small program in C.
// It declines containers that the stage does not support.
package stage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/opencontainers/cgroups"
	runc "github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/configs/validate"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/codec"
	"berth/internal/disk"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/console"
	"berth/internal/keeper/filter"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/runtime/libcontainer"
	"berth/internal/keeper/runtime/plan"
	"berth/internal/keeper/stage"
)

// markFile, in the directory of a container's state, is written by the stage right before the program begins. A stage
// that shares its PID namespace with other processes has no descriptor of this file, because they could take the
// descriptor of a file of the host. For such a stage the keeper writes the file, before it lets the stage continue.
const markFile = "begun"

// Engine sets containers up by the stage, a small program that is embedded in the keeper (package keeper/stage). After
// the start, the stage runs execs and Engine removes the container. Everything else (updates, pauses, checkpoints) is
// done by libcontainer, from the state file that saveState writes.
type Engine struct {
	*libcontainer.Engine
	dir     runtime.Dir
	stages  *plan.Stages
	filters *filter.Store
}

var (
	_ runtime.Runtime      = (*Engine)(nil)
	_ runtime.Checkpointer = (*Engine)(nil)
)

// New returns the engine of a keeper with this directory.
func New(dir runtime.Dir, stages *plan.Stages, filters *filter.Store, lib *libcontainer.Engine) *Engine {
	return &Engine{Engine: lib, dir: dir, stages: stages, filters: filters}
}

// WarmUp does once what the first start would do else, and each later one would find done.
func WarmUp() {
	cgroupdir.Find()
	codec.JSON(runc.State{})
}

// CompileSeccomp compiles a profile that is not compiled yet, so that no container waits for that.
func (e *Engine) CompileSeccomp(ctx context.Context, profile *specs.LinuxSeccomp) error {
	key, err := filter.Key(profile)
	if err == nil {
		_, err = e.filters.Get(ctx, key, profile)
	}
	return err
}

// Start starts a container of a launch that libcontainer's engine has prepared. While the stage sets the container up,
// the keeper records the container and puts its descriptors into escrow.
func (e *Engine) Start(ctx context.Context, c runtime.Container, l *runtime.Launch) (err error) {
	p, err := plan.NewProcess(l.Spec.Process)
	if err != nil {
		return err
	}
	p.Init = true
	join, reason := e.stages.Joinable(c.ID(), l.Config)
	if reason = e.stages.NotStaged(l.Spec, l.Config, p, join, reason); reason != "" {
		return &runtime.Declined{Reason: reason}
	}
	if join.Keyring != "" && join.Namespaces&unix.CLONE_NEWUSER == 0 {
		join.KeyringUID = plan.KeyringUID(c.ID())
		// Root of another container can become any user, and IDs of containers are no secret: the name is one.
		join.Keyring = "_ses." + rand.Text()
	}
	proc, limits, err := e.process(ctx, c, l.Spec, join)
	if err != nil {
		return err
	}
	l.Phases.End("seccomp")

	dir := e.dir.State(c.ID())
	group, err := prepare(dir, l.Config)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if derr := errors.Join(group.Destroy(), os.RemoveAll(dir)); derr != nil {
				c.Log().Warn("remove container that did not start", "error", derr)
			}
		}
	}()
	if !l.Config.Cgroups.Systemd {
		if err := cgroupdir.Make(group, l.Config.Cgroups.Resources); err != nil {
			return fmt.Errorf("make the container's cgroups: %w", err)
		}
	}
	l.Phases.End("cgroup")
	setup, err := plan.Setup(l.Config, join, group.GetPaths(), proc.Cwd, proc.Terminal)
	if err != nil {
		return err
	}
	setup.Limits = limits
	s := &start{e: e, c: c, l: l, join: join, proc: proc, group: group}
	if s.mark, err = stage.NewMark(filepath.Join(dir, markFile)); err != nil {
		return err
	}
	defer s.mark.Close()
	if join.Seen = setup.Seen(); !join.Seen {
		setup.Mark = s.mark
	}
	if s.sock, err = console.NewSocket(proc.Terminal); err != nil {
		return err
	}
	defer s.sock.Close()
	if s.process, err = e.stages.Program.Begin(setup, proc, stage.Stdio(l.IO.Files()), s.sock.Theirs); err != nil {
		return err
	}
	defer s.process.Close()
	if err := s.run(); err != nil {
		if errors.Is(err, stage.ErrSilent) {
			if n, oerr := group.OOMKillCount(); oerr == nil && n > 0 {
				err = errors.New("container init was OOM-killed (memory limit too low?)")
			}
		}
		s.process.Kill()
		return err
	}
	return nil
}

// start is the part of a container's start after its stage has been started.
type start struct {
	e       *Engine
	c       runtime.Container
	l       *runtime.Launch
	join    *record.Join
	proc    *stage.Process
	group   cgroups.Manager
	mark    *os.File // see markFile
	sock    console.Socket
	process *stage.Starting
}

// run goes with the stage through the set-up until the program begins. If run fails, the caller kills the stage.
func (s *start) run() error {
	l, f := s.l, s.process
	if l.Config.Cgroups.Systemd {
		if err := s.group.Apply(f.Spawned()); err != nil {
			return fmt.Errorf("make the container's cgroups: %w", err)
		}
	}
	paths := s.group.GetPaths()
	pid, err := f.Start()
	if err != nil {
		return err
	}
	l.Settled() // the set-up may wait for the file system of a volume
	l.Phases.End("process")
	if err := s.e.saveState(s.c, l.Config, paths, pid, l); err != nil {
		return err
	}
	s.join.Cgroups = maps.Clone(paths)
	res := runtime.Started{
		PID: pid, Console: -1, Cgroups: cgroupdir.Recorded(paths), Join: s.join,
		Setup: protocol.Setup{Engine: protocol.EngineStage, ExecEngine: protocol.EngineStage, ExecReason: l.Reason},
	}
	if !s.proc.Terminal { // a terminal exists only when the set-up is done: see below
		if err := s.register(res); err != nil {
			return err
		}
	}
	if err := f.Ready(); err != nil {
		return err
	}
	l.Phases.End("init")
	// The limits are set after the set-up, which may need devices and processor time that the container does not have.
	if err := s.group.Set(l.Config.Cgroups.Resources); err != nil {
		return fmt.Errorf("set the container's limits: %w", err)
	}
	l.Phases.End("limits")
	if s.proc.Terminal {
		if res.Console, err = s.sock.Take(pid); err != nil {
			return err
		}
		if err := s.register(res); err != nil {
			return err
		}
	}
	if s.join.Seen {
		if err := stage.Begin(s.mark); err != nil {
			return fmt.Errorf("mark that the program begins: %w", err)
		}
	}
	if err := f.Run(); err != nil {
		return err
	}
	l.Phases.End("program")
	return nil
}

// register passes the process to the keeper's tables. From then on the keeper reaps it.
func (s *start) register(res runtime.Started) error {
	if err := s.l.Register(res); err != nil {
		return err
	}
	s.process.Disown()
	s.l.Phases.End("escrow")
	return nil
}

// process returns the init process for the stage, with its limits and its seccomp filter. The error is a
// *runtime.Declined if only libcontainer can make this process.
func (e *Engine) process(
	ctx context.Context, c runtime.Container, spec *specs.Spec, join *record.Join,
) (*stage.Process, []stage.Limit, error) {
	proc, reason, err := plan.Staged(spec.Process)
	if err != nil {
		return nil, nil, err
	}
	if proc == nil {
		return nil, nil, &runtime.Declined{Reason: reason}
	}
	limits, err := plan.Limits(spec.Process.Rlimits)
	if err != nil {
		return nil, nil, err
	}
	if profile := spec.Linux.Seccomp; profile != nil {
		key, compiled, err := plan.Filter(ctx, e.filters, c, profile)
		if err != nil {
			return nil, nil, err
		}
		if compiled == nil {
			return nil, nil, &runtime.Declined{Reason: "the container's seccomp profile cannot be compiled beforehand"}
		}
		proc.Filter, join.Filter, join.FilterSum = compiled, key, filter.Sum(compiled.Bytes())
	}
	return proc, limits, nil
}

// prepare checks a configuration, and that its cgroup has no processes and is not frozen, as libcontainer does. It
// makes the directory of the state file.
func prepare(dir string, config *configs.Config) (cgroups.Manager, error) {
	if err := validate.Validate(config); err != nil {
		return nil, err
	}
	group, err := cgroupdir.NewManager(config.Cgroups)
	if err != nil {
		return nil, err
	}
	if group.Exists() {
		pids, err := group.GetAllPids()
		switch {
		case err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV):
			return nil, fmt.Errorf("processes in the container's cgroup: %w", err)
		case len(pids) > 0:
			return nil, fmt.Errorf("the container's cgroup has %d processes already", len(pids))
		}
		if st, err := group.GetFreezerState(); err != nil {
			return nil, fmt.Errorf("state of the container's cgroup: %w", err)
		} else if st == cgroups.Frozen {
			return nil, errors.New("the container's cgroup is frozen")
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return nil, err
	}
	return group, os.Mkdir(dir, 0o711)
}

// saveState writes the state file that libcontainer needs for updates, pauses, checkpoints and the removal of the
// container.
func (e *Engine) saveState(
	c runtime.Container, config *configs.Config, paths map[string]string, pid int, l *runtime.Launch,
) error {
	start, err := pidfd.StartTime(pid)
	if err != nil {
		return err
	}
	st := runc.State{
		BaseState: runc.BaseState{
			ID: c.ID(), InitProcessPid: pid, InitProcessStartTime: start, Created: time.Now().UTC(), Config: *config,
		},
		CgroupPaths: paths, NamespacePaths: map[configs.NamespaceType]string{},
	}
	for _, t := range configs.NamespaceTypes() {
		if configs.IsNamespaceSupported(t) {
			ns := configs.Namespace{Type: t}
			for _, own := range config.Namespaces {
				if own.Type == t {
					ns = own
				}
			}
			st.NamespacePaths[t] = ns.GetPath(pid)
		}
	}
	// What the standard streams are called, for checkpoints.
	for _, f := range []*os.File{l.IO.In, l.IO.Out, l.IO.Err} {
		name := os.DevNull
		if f != nil {
			if name, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd()))); err != nil {
				return err
			}
		}
		st.ExternalDescriptors = append(st.ExternalDescriptors, name)
	}
	return disk.WriteOrOverwrite(filepath.Join(e.dir.States(), c.ID(), "state.json"), record.JSON(&st))
}

// Begun says whether the program of a container has begun. A stage writes that to its mark. For a stage that shares its
// PID namespace, the keeper writes the mark before it lets the stage continue, so such a mark says only that the
// program may have begun: it counts as begun unless the stage is found waiting.
func (e *Engine) Begun(c runtime.Container) bool {
	rec := c.Record()
	mark := filepath.Join(e.dir.State(c.ID()), markFile)
	begun, err := stage.Begun(mark)
	seen := rec.Join != nil && rec.Join.Seen
	switch {
	case err != nil:
		return runtime.WaitingBegan(&rec)
	case !begun && seen:
		return false // the keeper was killed before it let the stage continue, and the stage ends by itself
	case begun && seen:
		return runtime.WaitingBegan(&rec) // it may have been killed between the two
	}
	return begun || begins(&rec, mark, c.Log())
}

// begins waits for a stage that has not written its mark yet. The stage may still write the mark, or it notices that
// its keeper has ended, and exits. If it does neither in time, begins kills it, and then the mark decides.
func begins(r *record.Container, mark string, log *slog.Logger) bool {
	deadline, killed := time.Now().Add(runtime.StageWait), false
	for ; pidfd.Alive(r.PID, r.Start); time.Sleep(time.Millisecond) {
		if begun, err := stage.Begun(mark); begun && err == nil {
			return true
		}
		if time.Now().Before(deadline) {
			continue
		}
		if killed {
			break // Abort kills it again
		}
		if err := unix.Kill(r.PID, unix.SIGKILL); err != nil && err != unix.ESRCH {
			log.Error("kill a stage that does not end", "pid", r.PID, "error", err)
		}
		deadline, killed = time.Now().Add(runtime.StageWait), true
	}
	begun, err := stage.Begun(mark)
	return begun || err != nil
}

// Destroy removes the cgroups and the state file. libcontainer removes cgroups of systemd.
func (e *Engine) Destroy(ctx context.Context, c runtime.Container) error {
	rec := c.Record()
	if rec.Join == nil || rec.Systemd {
		return e.Engine.Destroy(ctx, c)
	}
	if err := c.Guard().Lock(ctx); err != nil {
		return err
	}
	defer c.Guard().Unlock()
	if err := cgroups.RemovePaths(maps.Clone(rec.Join.Cgroups)); err != nil {
		return err
	}
	*c.Loaded() = nil
	return os.RemoveAll(e.dir.State(c.ID()))
}

// Abort kills and removes everything of a container.
func (e *Engine) Abort(ctx context.Context, c runtime.Container) error {
	rec := c.Record()
	return errors.Join(cgroupdir.KillSpec(c.ID(), rec.CgroupsPath, rec.Systemd), e.RemoveState(ctx, c, e.Destroy))
}
