package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/console"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/runtime/plan"
	"berth/internal/keeper/stage"
)

// Exec starts a further process by a stage.
func (e *Engine) Exec(ctx context.Context, c runtime.Container, l *runtime.Launch) (err error) {
	j, proc := c.Record().Join, c.Process()
	if j == nil || proc == nil || e.stages.Program == nil {
		return &runtime.Declined{Reason: "the container cannot be joined"}
	}
	t, p, err := e.target(c, l, j)
	if err != nil {
		return err
	}
	if j.Namespaces&unix.CLONE_NEWUSER != 0 {
		if err := l.IO.Own(j.RootUID, j.RootGID); err != nil {
			return err
		}
	}
	sock, err := console.NewSocket(p.Terminal)
	if err != nil {
		return err
	}
	defer sock.Close()
	f, err := e.enter(ctx, c, proc, l, j, t, p, sock.Theirs)
	if err != nil {
		return err
	}
	defer f.Close()
	// From here on the container sees the process, and may stop it: nothing that others wait for is held.
	defer context.AfterFunc(ctx, f.Interrupt)()
	defer func() {
		if err != nil {
			f.Kill()
		}
	}()
	res := runtime.Started{Waits: true, Marked: l.Traced && !t.OwnCgroupNamespace}
	if res.PID, err = f.Start(); err != nil {
		return err
	}
	if t.OwnCgroupNamespace {
		res.CgroupNamespace = procfs.Namespace(res.PID, "cgroup")
	}
	if res.Console, err = sock.Take(res.PID); err != nil {
		return err
	}
	f.Disown()
	if err := l.Register(res); err != nil {
		return err
	}
	l.Settled()
	return f.Run()
}

// target returns what the stage joins, but for the pidfd, and the process that it makes there.
func (e *Engine) target(c runtime.Container, l *runtime.Launch, j *record.Join) (*stage.Target, *stage.Process, error) {
	p, reason, err := plan.Staged(l.Process)
	if err != nil {
		return nil, nil, err
	}
	if p == nil {
		return nil, nil, &runtime.Declined{Reason: reason}
	}
	if err := plan.SameUmask(l.Process, j.Umask); err != nil {
		return nil, nil, err
	}
	if j.Filter != "" {
		if p.Filter, err = e.filters.Load(j.Filter, j.FilterSum); err != nil {
			c.Log().Warn("compiled seccomp filter is gone; libcontainer compiles it again", "error", err)
			return nil, nil, &runtime.Declined{Reason: "its compiled seccomp filter is gone"}
		}
	}
	if p.AppArmor == "" {
		p.AppArmor = j.AppArmor
	}
	if p.Label == "" {
		p.Label = j.Label
	}
	t := &stage.Target{
		Namespaces: j.Namespaces, Umask: j.Umask, OOMScore: j.OOMScore, Keyring: j.Keyring,
		KeyringUID: j.KeyringUID, Limits: j.Limits,
	}
	if l.Process.OOMScoreAdj != nil { // an update has changed it since the container started
		t.OOMScore = l.Process.OOMScoreAdj
	}
	if len(l.Process.Rlimits) > 0 {
		if t.Limits, err = plan.Limits(l.Process.Rlimits); err != nil {
			return nil, nil, err
		}
	}
	for controller, dir := range j.Cgroups {
		if controller != "" {
			t.Cgroups = append(t.Cgroups, filepath.Join(dir, l.Sub[controller]))
		} else {
			t.Cgroup, t.Clone = dir, cgroups.IsCgroup2UnifiedMode()
		}
	}
	return t, p, nil
}

// enter starts a process that enters a container, and returns when it is there. A pause waits meanwhile, so that no
// process that is half in the container is frozen.
func (e *Engine) enter(
	ctx context.Context, c runtime.Container, proc *pidfd.FD, l *runtime.Launch, j *record.Join, t *stage.Target,
	p *stage.Process, console *os.File,
) (f *stage.Starting, err error) {
	guard := c.Guard()
	if err := runtime.WithoutCheckpoint(ctx, c, guard.Enter, guard.Leave); err != nil {
		return nil, stage.ErrInterrupted
	}
	defer guard.Leave()
	if cgroupdir.Frozen(c.Record().Cgroups) {
		return nil, fmt.Errorf("container %s is paused: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	join := func() (f *stage.Starting, err error) {
		// The container's cgroup namespace shows the container's cgroup as the root, and not one below it.
		t.OwnCgroupNamespace = l.Traced && t.Clone && t.Inner == "" && j.OwnCgroupNamespace
		if l.Traced && !t.OwnCgroupNamespace {
			p.Env = runtime.WithMark(l.Process.Env, l.ExecID)
		}
		cerr := proc.Control(func(fd int) {
			t.Pidfd = fd
			f, err = e.stages.Program.Join(t, p, stage.Stdio(l.IO.Files()), console)
		})
		if cerr != nil {
			return nil, ended(c)
		}
		if err != nil {
			return nil, err
		}
		defer context.AfterFunc(ctx, f.Interrupt)()
		if _, err := f.Start(); err != nil {
			f.Kill()
			f.Close()
			return nil, err
		}
		return f, nil
	}
	if j.Delegated && t.Inner == "" {
		if t.Inner, err = withInit(c, proc, t.Cgroup); err != nil {
			return nil, err
		}
	}
	f, err = join()
	if errors.Is(err, stage.ErrSubtreeControl) && t.Inner == "" {
		if t.Inner, err = withInit(c, proc, t.Cgroup); err == nil {
			f, err = join()
		}
	}
	return f, err
}

// withInit returns the path from a container's cgroup of version 2 to the cgroup of its init process. It is where an
// exec belongs if the container has made cgroups with controllers in its own, as an init system does: the kernel then
// allows processes in these cgroups only. The container decides where its init process is, so the cgroup has to be the
// container's own or below it.
func withInit(c runtime.Container, proc *pidfd.FD, own string) (inner string, err error) {
	dirs, err := cgroupdir.OfProcess(proc.PID())
	if serr := proc.Signal(0); serr != nil { // another process may have its number
		return "", ended(c)
	}
	if err != nil {
		return "", fmt.Errorf("cgroup of the init process of container %s: %w", c.ID(), err)
	}
	inner, err = filepath.Rel(own, dirs[""])
	if err != nil || !filepath.IsLocal(inner) {
		return "", fmt.Errorf("container %s has moved its init process out of its cgroup %s, to %s: %w", c.ID(), own,
			dirs[""], errdefs.ErrFailedPrecondition)
	}
	return inner, nil
}

func ended(c runtime.Container) error {
	return fmt.Errorf("container %s has ended: %w", c.ID(), errdefs.ErrFailedPrecondition)
}
