package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/capability"
	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/console"
	"berth/internal/keeper/filter"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/record"
	"berth/internal/keeper/stage"
)

// namespaceFlags are the namespaces that a stage joins.
var namespaceFlags = map[configs.NamespaceType]uint32{
	configs.NEWUSER: unix.CLONE_NEWUSER, configs.NEWNS: unix.CLONE_NEWNS, configs.NEWPID: unix.CLONE_NEWPID,
	configs.NEWNET: unix.CLONE_NEWNET, configs.NEWIPC: unix.CLONE_NEWIPC, configs.NEWUTS: unix.CLONE_NEWUTS,
	configs.NEWCGROUP: unix.CLONE_NEWCGROUP,
}

// joinable is nil for a container whose execs need libcontainer, with the reason.
func (r *inProcess) joinable(id string, config *configs.Config) (j *record.Join, reason string) {
	switch found := execDeclined.find(config); {
	case found != "":
		return nil, "the container has " + found
	case r.s.stages == nil:
		return nil, r.s.noSetups
	}
	j = &record.Join{Umask: config.Umask, OOMScore: config.OomScoreAdj, AppArmor: config.AppArmorProfile, Label: config.ProcessLabel,
		OwnProcesses: config.Namespaces.IsPrivate(configs.NEWPID)}
	for _, ns := range config.Namespaces {
		flag, ok := namespaceFlags[ns.Type]
		if !ok {
			return nil, fmt.Sprintf("the container has a namespace of type %s", strings.TrimPrefix(string(ns.Type), "NEW"))
		}
		j.Namespaces |= flag
	}
	if j.Namespaces&unix.CLONE_NEWNS == 0 {
		return nil, "the container has no mount namespace of its own"
	}
	if !config.NoNewKeyring {
		j.Keyring = "_ses." + id
	}
	if j.Namespaces&unix.CLONE_NEWUSER != 0 {
		var err error
		if j.RootUID, err = config.HostRootUID(); err != nil {
			return nil, err.Error()
		}
		if j.RootGID, err = config.HostRootGID(); err != nil {
			return nil, err.Error()
		}
	}
	for _, l := range config.Rlimits {
		j.Limits = append(j.Limits, stage.Limit{Resource: l.Type, Soft: l.Soft, Hard: l.Hard})
	}
	return j, ""
}

// capabilityBits are the kernel's numbers of capabilities by name.
var capabilityBits = sync.OnceValues(func() (map[string]uint64, error) {
	list, err := capability.ListSupported()
	bits := make(map[string]uint64, len(list))
	for _, c := range list {
		bits["CAP_"+strings.ToUpper(c.String())] = 1 << uint(c)
	}
	return bits, err
})

// capabilities leaves names out that the kernel does not know.
func capabilities(c *specs.LinuxCapabilities) (*stage.Capabilities, error) {
	bits, err := capabilityBits()
	if err != nil {
		return nil, err
	}
	set := func(names []string) (out uint64) {
		for _, n := range names {
			out |= bits[n]
		}
		return out
	}
	return &stage.Capabilities{
		Bounding: set(c.Bounding), Effective: set(c.Effective), Inheritable: set(c.Inheritable),
		Permitted: set(c.Permitted), Ambient: set(c.Ambient),
	}, nil
}

// staged is a process as the last stage makes it, nil where only libcontainer can, with the reason.
func staged(p *specs.Process) (s *stage.Process, reason string, err error) {
	switch found := execDeclined.find(p); {
	case found != "":
		return nil, "the container has " + found, nil
	case p.Capabilities == nil:
		return nil, "the process has no capabilities of its own", nil
	case p.SelinuxLabel != "" && p.ApparmorProfile != "":
		return nil, "the container has an SELinux label and an AppArmor profile", nil
	}
	caps, err := capabilities(p.Capabilities)
	if err != nil {
		return nil, "", err
	}
	s = &stage.Process{
		Args: p.Args, Env: p.Env, Cwd: p.Cwd, UID: p.User.UID, GID: p.User.GID, Groups: p.User.AdditionalGids,
		NoNewPrivileges: p.NoNewPrivileges, Capabilities: caps, AppArmor: p.ApparmorProfile, Label: p.SelinuxLabel,
		Terminal: p.Terminal,
	}
	if p.ConsoleSize != nil {
		s.Rows, s.Columns = uint16(min(p.ConsoleSize.Height, math.MaxUint16)), uint16(min(p.ConsoleSize.Width, math.MaxUint16))
	}
	return s, "", nil
}

// join runs an exec by a stage. handled is false where it must go through libcontainer; nothing has been started then.
func (r *inProcess) join(ctx context.Context, c *container, l *launch) (handled bool, err error) {
	c.mu.Lock()
	j, choice, proc := c.row.Join, c.row.Choice, c.proc
	c.mu.Unlock()
	if j == nil || choice == keeper.SetupLibcontainer || proc == nil || r.s.stages == nil {
		return false, nil
	}
	p, reason, err := staged(l.process)
	if err != nil {
		return true, err
	}
	if p == nil {
		c.log.Debug("exec goes through libcontainer", "reason", reason)
		return false, nil
	}
	if err := sameUmask(l.process, j.Umask); err != nil {
		return true, err
	}
	if j.Filter != "" {
		if p.Filter, err = r.s.filters.Load(j.Filter, j.FilterSum); err != nil {
			c.log.Warn("compiled seccomp filter is gone; libcontainer compiles it again", "error", err)
			return false, nil
		}
	}
	if p.AppArmor == "" {
		p.AppArmor = j.AppArmor
	}
	if p.Label == "" {
		p.Label = j.Label
	}
	t := &stage.Target{Namespaces: j.Namespaces, Umask: j.Umask, OOMScore: j.OOMScore, Keyring: j.Keyring, Limits: j.Limits}
	if l.process.OOMScoreAdj != nil { // an update has changed it since the container started
		t.OOMScore = l.process.OOMScoreAdj
	}
	if len(l.process.Rlimits) > 0 {
		if t.Limits, err = stageLimits(l.process.Rlimits); err != nil {
			return true, err
		}
	}
	for controller, dir := range j.Cgroups {
		if sub, ok := l.sub[controller]; ok {
			dir += "/" + sub
		}
		if controller == "" {
			t.Cgroup = dir
		} else {
			t.Cgroups = append(t.Cgroups, dir)
		}
	}
	for _, f := range []*os.File{l.io.in, l.io.out, l.io.err} {
		if f != nil && j.Namespaces&unix.CLONE_NEWUSER != 0 {
			if err := f.Chown(j.RootUID, j.RootGID); err != nil {
				return true, err
			}
		}
	}
	res := launched{console: -1}
	var sock console.Socket
	if p.Terminal {
		if sock, err = console.NewSocket(); err != nil {
			return true, err
		}
		defer sock.Close()
	}
	f, err := r.enter(ctx, c, proc, t, p, stage.Stdio{l.io.in, l.io.out, l.io.err}, sock.Theirs)
	if errors.Is(err, stage.ErrJoin) {
		c.log.Debug("exec goes through libcontainer", "reason", err)
		return false, nil
	}
	if err != nil {
		return true, err
	}
	defer f.Close()
	// From here on the container sees the process, and may stop it: nothing that others wait for is held.
	defer context.AfterFunc(ctx, f.Interrupt)()
	defer func() {
		if err != nil {
			f.Kill()
		}
	}()
	if res.pid, err = f.Start(); err != nil {
		return true, err
	}
	if p.Terminal {
		if res.console, err = sock.Take(res.pid); err != nil {
			return true, err
		}
	}
	f.Disown()
	if err := l.hold(res); err != nil {
		return true, err
	}
	return true, f.Run()
}

// enter starts a process that enters a container, and returns when it is there. A pause waits meanwhile, so that no process that is
// half in the container is frozen.
func (r *inProcess) enter(ctx context.Context, c *container, proc *pidfd.FD, t *stage.Target, p *stage.Process, stdio stage.Stdio,
	console *os.File) (f *stage.Starting, err error) {
	c.libMu.RLock()
	for still := c.standing(); still != nil; still = c.standing() {
		c.libMu.RUnlock()
		select {
		case <-still:
		case <-ctx.Done():
			return nil, errEnded
		}
		c.libMu.RLock()
	}
	defer c.libMu.RUnlock()
	c.mu.Lock()
	paths := c.row.Cgroups
	c.mu.Unlock()
	if cgroupdir.Frozen(paths) {
		return nil, fmt.Errorf("container %s is paused: %w", c.id, errdefs.ErrFailedPrecondition)
	}
	cerr := proc.Control(func(fd int) {
		t.Pidfd = fd
		f, err = r.s.stages.Join(t, p, stdio, console)
	})
	if cerr != nil {
		return nil, fmt.Errorf("container %s has ended: %w", c.id, errdefs.ErrFailedPrecondition)
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

// sameUmask refuses an exec with a umask that is not its container's: the specification has one for the first process only, and
// libcontainer gives execs that.
func sameUmask(p *specs.Process, container *uint32) error {
	own := uint32(defaultUmask)
	if container != nil {
		own = *container
	}
	if u := p.User.Umask; u != nil && *u != own {
		return fmt.Errorf("umask %#o of an exec in a container with %#o: %w", *u, own, errdefs.ErrNotImplemented)
	}
	return nil
}

// defaultUmask is that of processes whose specification names none.
const defaultUmask = 0o022

// exec starts a further process in a container.
func (r *inProcess) exec(ctx context.Context, c *container, l *launch) (res launched, held bool, err error) {
	if err := checkProcess(l.process); err != nil {
		return launched{console: -1}, false, err
	}
	handled, err := r.join(ctx, c, l)
	if handled || err != nil {
		return launched{console: -1}, handled && err == nil, err
	}
	res, err = r.execLibcontainer(ctx, c, l)
	return res, false, err
}

// filter is a container's profile compiled, with its key; nil where libcontainer must see to the profile itself.
func (r *inProcess) filter(ctx context.Context, c *container, p *specs.LinuxSeccomp) (key string, compiled *filter.Filter, err error) {
	if key, err = filter.Key(p); err != nil {
		return "", nil, err
	}
	c.mu.Lock()
	c.filter = key // from before it is looked for: its files stay
	c.mu.Unlock()
	compiled, err = r.s.filters.Get(ctx, key, p)
	return key, compiled, err
}
