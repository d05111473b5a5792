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

	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/stage"
)

// first starts a container by a stage: handled is false where libcontainer must, and nothing has been done then. While the stage
// sets itself up, this process sets limits and gives the container into custody.
func (r *inProcess) first(ctx context.Context, c *container, l *launch, config *configs.Config, join *joinable) (handled bool, err error) {
	if !setupRights() || !r.setsUp(config, join) {
		return false, nil
	}
	proc, err := staged(l.spec.Process)
	if proc == nil || err != nil {
		return false, err
	}
	terminal := proc.Terminal
	proc.Terminal = terminal
	if profile := l.spec.Linux.Seccomp; profile != nil {
		key, filter, err := r.filter(ctx, c, profile)
		if filter == nil || err != nil {
			return false, err
		}
		proc.Filter, join.Filter = filter, key
	}
	join.Staged = true
	l.phases.end("seccomp")

	// It checks the configuration and that the cgroup is nobody's, and makes the directory of the state.
	lib, err := libcontainer.Create(r.s.stateRoot(), c.id, config)
	if err != nil {
		return true, err
	}
	defer func() {
		if err != nil {
			if derr := lib.Destroy(); derr != nil {
				c.log.Warn("remove container that did not start", "error", derr)
			}
		}
	}()
	// Until this is gone the program has not begun: see begun.
	marker := filepath.Join(r.s.stateRoot(), c.id, "exec.fifo")
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		return true, err
	}
	group, err := manager.New(config.Cgroups)
	if err != nil {
		return true, err
	}
	if !config.Cgroups.Systemd {
		if err := group.Apply(-1); err != nil {
			return true, fmt.Errorf("make the container's cgroups: %w", err)
		}
	}
	paths := group.GetPaths()
	l.phases.end("cgroup")

	setup, err := r.setup(config, join, paths, proc.Cwd, terminal)
	if err != nil {
		return true, err
	}
	for _, rl := range l.spec.Process.Rlimits {
		setup.Limits = append(setup.Limits, stage.Limit{Resource: rlimitNumbers[rl.Type], Soft: rl.Soft, Hard: rl.Hard})
	}
	var console consoleSocket
	if terminal {
		if console, err = newConsoleSocket(); err != nil {
			return true, err
		}
		defer console.close()
	}
	f, err := r.s.stages.Begin(setup, proc, stage.Stdio{l.io.in, l.io.out, l.io.err}, console.theirs)
	if err != nil {
		return true, err
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
			return true, fmt.Errorf("make the container's cgroups: %w", err)
		}
		paths = group.GetPaths()
	}
	pid, err := f.Start()
	if err != nil {
		return true, err
	}
	l.phases.end("process")
	if err := group.Set(config.Cgroups.Resources); err != nil {
		return true, fmt.Errorf("set the container's limits: %w", err)
	}
	l.phases.end("limits")
	if err := r.saveState(c, config, paths, pid, l); err != nil {
		return true, err
	}
	res := launched{pid: pid, console: -1, cgroups: keepPaths(paths), join: join}
	join.Cgroups = maps.Clone(paths)
	if !terminal {
		if err := l.hold(res); err != nil {
			return true, err
		}
		f.Disown()
		l.phases.end("custody")
	}
	if err := f.Ready(); err != nil {
		return true, err
	}
	l.phases.end("init")
	if terminal {
		if res.console, err = console.take(pid); err != nil {
			return true, err
		}
		if err := l.hold(res); err != nil {
			return true, err
		}
		f.Disown()
		l.phases.end("custody")
	}
	if err := f.Run(); err != nil {
		return true, err
	}
	if err := os.Remove(marker); err != nil {
		c.log.Warn("mark the program as begun", "error", err)
	}
	l.phases.end("program")
	return true, nil
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
	return writeWhole(filepath.Join(r.s.stateRoot(), c.id, "state.json"), mustJSON(&st))
}
