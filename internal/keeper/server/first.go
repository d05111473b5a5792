package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/configs/validate"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/console"
	"berth/internal/keeper/filter"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/record"
	"berth/internal/keeper/stage"
	"berth/internal/keeper/wholefile"
)

// byStage is a process that the stage makes, with its limits and its seccomp filter; nil, with the reason, where libcontainer must.
func (r *inProcess) byStage(ctx context.Context, c *container, spec *specs.Spec, join *record.Join) (*stage.Process, []stage.Limit, string, error) {
	proc, reason, err := staged(spec.Process)
	if proc == nil || err != nil {
		return nil, nil, reason, err
	}
	limits, err := stageLimits(spec.Process.Rlimits)
	if err != nil {
		return nil, nil, "", err
	}
	if profile := spec.Linux.Seccomp; profile != nil {
		key, compiled, err := r.filter(ctx, c, profile)
		if err != nil {
			return nil, nil, "", err
		}
		if compiled == nil {
			return nil, nil, "the container's seccomp profile cannot be compiled beforehand", nil
		}
		proc.Filter, join.Filter, join.FilterSum = compiled, key, filter.Sum(compiled.Bytes())
	}
	return proc, limits, "", nil
}

// markFile, in the directory of a container's state, is where its stage says that the program is about to begin. A stage that others in
// its PID namespace see has no descriptor of it: they could take that, which is of a file of the host. There the keeper says so, before it
// lets the stage go on.
const markFile = "begun"

// first starts a container by a stage. While the stage sets itself up, this process gives the container into custody.
func (r *inProcess) first(c *container, l *launch, config *configs.Config, join *record.Join, proc *stage.Process, limits []stage.Limit) (err error) {
	l.phases.end("seccomp")

	dir := filepath.Join(r.s.stateRoot(), c.id)
	group, err := prepare(dir, config)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if derr := errors.Join(group.Destroy(), os.RemoveAll(dir)); derr != nil {
				c.log.Warn("remove container that did not start", "error", derr)
			}
		}
	}()
	if !config.Cgroups.Systemd {
		if err := group.Apply(-1); err != nil {
			return fmt.Errorf("make the container's cgroups: %w", err)
		}
	}
	paths := group.GetPaths()
	l.phases.end("cgroup")

	setup, err := r.setup(config, join, paths, proc.Cwd, proc.Terminal)
	if err != nil {
		return err
	}
	setup.Limits = limits
	mark, err := stage.NewMark(filepath.Join(dir, markFile))
	if err != nil {
		return err
	}
	defer mark.Close()
	if join.Seen = setup.Seen(); !join.Seen {
		setup.Mark = mark
	}
	var sock console.Socket
	if proc.Terminal {
		if sock, err = console.NewSocket(); err != nil {
			return err
		}
		defer sock.Close()
	}
	f, err := r.s.stages.Begin(setup, proc, stage.Stdio{l.io.in, l.io.out, l.io.err}, sock.Theirs)
	if err != nil {
		return err
	}
	defer f.Close()
	defer func() {
		if err != nil {
			if errors.Is(err, stage.ErrSilent) {
				if n, oerr := group.OOMKillCount(); oerr == nil && n > 0 {
					err = errors.New("container init was OOM-killed (memory limit too low?)")
				}
			}
			f.Kill()
		}
	}()
	if config.Cgroups.Systemd {
		if err := group.Apply(f.Spawned()); err != nil {
			return fmt.Errorf("make the container's cgroups: %w", err)
		}
		paths = group.GetPaths()
	}
	pid, err := f.Start()
	if err != nil {
		return err
	}
	l.phases.end("process")
	if err := r.saveState(c, config, paths, pid, l); err != nil {
		return err
	}
	res := launched{pid: pid, console: -1, cgroups: cgroupdir.Kept(paths), join: join, setup: l.setup}
	join.Cgroups = maps.Clone(paths)
	custody := func() error {
		if err := l.hold(res); err != nil {
			return err
		}
		f.Disown()
		l.phases.end("custody")
		return nil
	}
	if !proc.Terminal { // a terminal is there when all is ready
		if err := custody(); err != nil {
			return err
		}
	}
	if err := f.Ready(); err != nil {
		return err
	}
	l.phases.end("init")
	// Not before: its own part needs devices, and time, that the container may not have.
	if err := group.Set(config.Cgroups.Resources); err != nil {
		return fmt.Errorf("set the container's limits: %w", err)
	}
	l.phases.end("limits")
	if proc.Terminal {
		if res.console, err = sock.Take(pid); err != nil {
			return err
		}
		if err := custody(); err != nil {
			return err
		}
	}
	if join.Seen {
		if err := stage.Begin(mark); err != nil {
			return fmt.Errorf("mark that the program begins: %w", err)
		}
	}
	if err := f.Run(); err != nil {
		return err
	}
	l.phases.end("program")
	return nil
}

// prepare checks a configuration, and that its cgroup is nobody's, as libcontainer does, and makes the directory of the state.
func prepare(dir string, config *configs.Config) (cgroups.Manager, error) {
	if err := validate.Validate(config); err != nil {
		return nil, err
	}
	group, err := manager.New(config.Cgroups)
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

// saveState writes what libcontainer needs to go on with the container: for updates, pauses, checkpoints and its end.
func (r *inProcess) saveState(c *container, config *configs.Config, paths map[string]string, pid int, l *launch) error {
	start, err := pidfd.StartTime(pid)
	if err != nil {
		return err
	}
	st := libcontainer.State{
		BaseState: libcontainer.BaseState{
			ID: c.id, InitProcessPid: pid, InitProcessStartTime: start, Created: time.Now().UTC(), Config: *config,
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
	for _, f := range []*os.File{l.io.in, l.io.out, l.io.err} {
		name := os.DevNull
		if f != nil {
			if name, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd()))); err != nil {
				return err
			}
		}
		st.ExternalDescriptors = append(st.ExternalDescriptors, name)
	}
	return wholefile.Write(filepath.Join(r.s.stateRoot(), c.id, "state.json"), record.JSON(&st))
}
