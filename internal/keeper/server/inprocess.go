package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
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

	"berth/internal/keeper"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/console"
	"berth/internal/keeper/null"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/record"
	"berth/internal/keeper/stage"
)

// initLogLevel is logrus' number of warnings. Without one, the first steps of each start and exec tell 40 debugging
// messages, and wake the keeper as often.
const initLogLevel = "3"

// inProcess makes containers with libcontainer in this process.
type inProcess struct {
	s *Server
}

func (s *Server) stateRoot() string { return filepath.Join(s.cfg.Dir, stateDir) }

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

// config is a spec as libcontainer has it, but for its seccomp profile.
func (r *inProcess) config(c *container, spec *specs.Spec) (*configs.Config, error) {
	if found := startRefused.find(spec); found != "" {
		return nil, fmt.Errorf("spec with %s: %w", found, errdefs.ErrInvalidArgument)
	}
	if spec.Linux != nil && spec.Linux.Seccomp != nil {
		linux := *spec.Linux
		linux.Seccomp = nil
		clone := *spec
		clone.Linux = &linux
		spec = &clone
	}
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{
		CgroupName: c.id, UseSystemdCgroup: c.row.Systemd, Spec: spec,
	})
	if err != nil {
		return nil, fmt.Errorf("spec: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err := checkConfig(spec, config); err != nil {
		return nil, err
	}
	for i, l := range config.Labels {
		if strings.HasPrefix(l, "bundle=") {
			config.Labels[i] = "bundle=" + r.s.bundle(c.id)
		}
	}
	// A label can name a file of settings for CRIU, and these can name programs: it is not a container's to choose.
	config.Labels = append(slices.DeleteFunc(config.Labels, func(l string) bool {
		return strings.HasPrefix(l, "org.criu.config=")
	}), "org.criu.config="+r.s.criuConfig())
	return config, nil
}

func (r *inProcess) run(ctx context.Context, c *container, l *launch) error {
	config, err := r.config(c, l.spec)
	if err != nil {
		return err
	}
	if l.spec.Hooks != nil {
		// Hooks find their container's spec through the bundle that the state they are given names.
		if err := r.s.writeBundle(c.id, l.spec); err != nil {
			return err
		}
	}
	if err := l.own(config); err != nil {
		return err
	}
	l.phases.end("specification")
	if l.restore != "" {
		return r.restore(c, l)
	}
	p, err := newProcess(l.spec.Process)
	if err != nil {
		return err
	}
	p.Init = true
	join, joinReason := r.joinable(c.id, config)
	reason := fmt.Sprintf("setup = %q is asked for", c.row.Choice)
	if c.row.Choice != keeper.SetupLibcontainer {
		reason = r.notStaged(l.spec, config, p, join, joinReason)
		if reason == "" {
			var proc *stage.Process
			var limits []stage.Limit
			if proc, limits, reason, err = r.byStage(ctx, c, l.spec, join); err != nil {
				return err
			}
			if proc != nil {
				const why = "it does all that this container needs"
				l.setup = keeper.Setup{Engine: keeper.EngineStage, Reason: why, ExecEngine: keeper.EngineStage, ExecReason: why}
				return r.first(c, l, config, join, proc, limits)
			}
		}
	} else {
		join, joinReason = nil, reason
	}
	l.setup = keeper.Setup{Engine: keeper.EngineLibcontainer, Reason: reason}
	last, err := r.lastStage(ctx, c, l.spec, config, p, join)
	if err != nil {
		return err
	}
	if last != nil {
		defer last.Close()
		l.setup.Engine = keeper.EngineLibcontainerStage
	} else if profile := l.spec.Linux.Seccomp; profile != nil {
		if config.Seccomp, err = r.s.seccomp.get(profile); err != nil {
			return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
		if join != nil {
			join, joinReason = nil, "libcontainer has loaded the seccomp filter"
		}
	}
	l.setup.ExecEngine, l.setup.ExecReason = keeper.EngineLibcontainer, joinReason
	if join != nil {
		l.setup.ExecEngine, l.setup.ExecReason = keeper.EngineStage, "it does all that execs of this container need"
	}
	l.phases.end("seccomp")
	lib, err := libcontainer.Create(r.s.stateRoot(), c.id, config)
	if err != nil {
		return err
	}
	res, err := start(ctx, lib, p, l)
	res.setup = l.setup
	l.phases.end("init")
	if err == nil {
		if st, err := lib.State(); err == nil {
			res.cgroups = cgroupdir.Kept(st.CgroupPaths)
			if join != nil {
				join.Cgroups = maps.Clone(st.CgroupPaths)
				res.join = join
			}
		}
		if err = l.hold(res); err == nil {
			l.phases.end("custody")
			err = lib.Exec()
		}
	}
	if err == nil && last != nil {
		if err = last.Wait(); err != nil {
			// It is gone in a moment; whoever holds it reaps it.
			_ = unix.Waitid(unix.P_PID, res.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		}
	}
	l.phases.end("program")
	if err != nil {
		if derr := lib.Destroy(); derr != nil {
			c.log.Warn("remove container that did not start", "error", derr)
		}
		return err
	}
	return nil
}

// begun: a stage says so itself, but for one that others see: that counts as begun unless it is found waiting. libcontainer's first process
// waits at a fifo, which whoever lets it go on removes a moment later.
func (r *inProcess) begun(c *container) bool {
	dir := filepath.Join(r.s.stateRoot(), c.id)
	mark := filepath.Join(dir, markFile)
	if begun, err := stage.Begun(mark); err == nil {
		seen := c.row.Join != nil && c.row.Join.Seen
		switch {
		case !begun && seen:
			return false // the keeper was killed before it let the stage go on, which ends by itself
		case begun && seen:
			return c.waitingBegan() // it may have been killed between the two
		}
		return begun || c.stageBegins(mark)
	}
	if c.row.Setup.Engine != keeper.EngineStage {
		if _, err := os.Lstat(filepath.Join(dir, "exec.fifo")); errors.Is(err, os.ErrNotExist) {
			return true
		}
	}
	return c.waitingBegan()
}

// own gives the pipes to the root of the container's user namespace, which must be able to open them by /proc.
func (l *launch) own(config *configs.Config) error {
	if !config.Namespaces.Contains(configs.NEWUSER) || l.io.out == nil {
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
	for _, f := range []*os.File{l.io.in, l.io.out, l.io.err} {
		if f != nil {
			if err := f.Chown(uid, gid); err != nil {
				return err
			}
		}
	}
	return nil
}

// start starts a process of a container and takes its terminal, if it has one. A container's first process waits for
// Exec before it becomes the container's program.
func start(ctx context.Context, lib *libcontainer.Container, p *libcontainer.Process, l *launch) (launched, error) {
	res := launched{console: -1}
	terminal := l.process
	if l.spec != nil {
		terminal = l.spec.Process
	}
	// With a terminal they are the process's until it has made it.
	nothing, err := null.Open()
	if err != nil {
		return res, err
	}
	defer nothing.Close()
	p.Stdin, p.Stdout, p.Stderr = orElse(l.io.in, nothing), orElse(l.io.out, nothing), orElse(l.io.err, nothing)
	var sock console.Socket
	if terminal.Terminal {
		if sock, err = console.NewSocket(); err != nil {
			return res, err
		}
		defer sock.Close()
		p.ConsoleSocket = sock.Theirs
	}
	p.SubCgroupPaths = l.sub
	over := endWith(ctx, l.io.in, l.io.out, l.io.err, nothing, sock.Theirs)
	err = lib.Start(p)
	over()
	if err != nil {
		return res, err
	}
	pid, err := p.Pid()
	if err != nil {
		return res, err
	}
	res.pid = pid
	if terminal.Terminal {
		if res.console, err = sock.Take(pid); err != nil {
			_, _ = p.Wait()
			return res, err
		}
	}
	return res, nil
}

// with calls fn with libcontainer's view of a running container. Calls for one container wait for each other.
func (r *inProcess) with(c *container, fn func(*libcontainer.Container) error) error {
	c.libMu.Lock()
	defer c.libMu.Unlock()
	lib, err := r.loaded(c)
	if err != nil {
		return err
	}
	return fn(lib)
}

// loaded is libcontainer's view. The caller has c.libMu.
func (r *inProcess) loaded(c *container) (*libcontainer.Container, error) {
	if c.lib == nil {
		if err := r.completeState(c); err != nil {
			return nil, fmt.Errorf("complete the state of container %s: %w", c.id, err)
		}
		lib, err := libcontainer.Load(r.s.stateRoot(), c.id)
		if err != nil {
			return nil, fmt.Errorf("load container %s: %w", c.id, err)
		}
		r.share(lib)
		c.lib = lib
	}
	return c.lib, nil
}

// share lets a loaded container use the copy of its seccomp profile that others have too.
func (r *inProcess) share(lib *libcontainer.Container) {
	config := lib.Config()
	if config.Seccomp == nil {
		return
	}
	b, err := json.Marshal(config.Seccomp)
	if err != nil {
		return
	}
	sum := sha256.Sum256(append([]byte("loaded:"), b...))
	in := &r.s.seccomp
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

// execLibcontainer is for what a stage does not do. The container can see libcontainer's processes before they run its program, and may
// stop them; so no lock is held meanwhile, and the end of the context kills them.
func (r *inProcess) execLibcontainer(ctx context.Context, c *container, l *launch) (launched, error) {
	p, err := newProcess(l.process)
	if err != nil {
		return launched{}, err
	}
	var own *libcontainer.Container // of this exec alone: a start holds libcontainer's own lock
	err = r.withoutCheckpoint(c, func(lib *libcontainer.Container) error {
		st, err := lib.Status()
		if err != nil {
			return err
		}
		switch st {
		case libcontainer.Paused:
			return fmt.Errorf("container %s is paused: %w", c.id, errdefs.ErrFailedPrecondition)
		case libcontainer.Stopped:
			return fmt.Errorf("container %s is not running: %w", c.id, errdefs.ErrFailedPrecondition)
		}
		if lib, err = r.rescored(c, lib, l.process.OOMScoreAdj); err != nil {
			return err
		}
		if err := sameUmask(l.process, lib.Config().Umask); err != nil {
			return err
		}
		own, err = libcontainer.Load(r.s.stateRoot(), c.id)
		return err
	})
	if err != nil {
		return launched{}, err
	}
	config := own.Config()
	if err := l.own(&config); err != nil {
		return launched{}, err
	}
	return start(ctx, own, p, l)
}

// endWith has the end of the context kill those children of this process that have one of the files, until the start that it is about
// is over. libcontainer does not tell which processes it starts, and these come into the container's cgroup late.
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
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.HasSuffix(line, []byte("\x00init\x00")) {
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

// rescored is libcontainer's view of a container whose oom_score_adj an update has changed since: libcontainer gives an exec the one
// that it knows. The caller has c.libMu.
func (r *inProcess) rescored(c *container, lib *libcontainer.Container, score *int) (*libcontainer.Container, error) {
	config := lib.Config()
	if score == nil || config.OomScoreAdj != nil && *config.OomScoreAdj == *score {
		return lib, nil
	}
	c.lib = nil
	err := r.editState(c, func(config map[string]json.RawMessage) (changed bool, err error) {
		config["oom_score_adj"] = record.JSON(score)
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("oom_score_adj of an exec in container %s: %w", c.id, err)
	}
	return r.loaded(c)
}

func (r *inProcess) update(_ context.Context, c *container, res *specs.LinuxResources) error {
	return r.with(c, func(lib *libcontainer.Container) error {
		config := lib.Config()
		cg := *config.Cgroups
		merged, err := mergeResources(cg.Resources, res)
		if err != nil {
			return err
		}
		// A device rule that was not asked for is left alone; libcontainer refuses to start anything with this set, so
		// the view that has it is thrown away.
		merged.SkipDevices = true
		cg.Resources = merged
		config.Cgroups = &cg
		c.lib = nil
		return lib.Set(config)
	})
}

func (r *inProcess) pause(_ context.Context, c *container) error {
	return r.with(c, func(lib *libcontainer.Container) error {
		if st, err := lib.Status(); err == nil && st == libcontainer.Paused {
			return nil
		}
		err := lib.Pause()
		if errors.Is(err, libcontainer.ErrNotRunning) {
			return fmt.Errorf("container %s: %w: %w", c.id, err, errdefs.ErrFailedPrecondition)
		}
		return err
	})
}

func (r *inProcess) resume(_ context.Context, c *container) error {
	return r.with(c, func(lib *libcontainer.Container) error {
		err := lib.Resume()
		if errors.Is(err, libcontainer.ErrNotPaused) {
			return nil
		}
		return err
	})
}

func (r *inProcess) destroy(_ context.Context, c *container) error {
	c.libMu.Lock()
	defer c.libMu.Unlock()
	dir := filepath.Join(r.s.stateRoot(), c.id)
	c.mu.Lock()
	join, engine := c.row.Join, c.row.Engine()
	c.mu.Unlock()
	if join != nil && engine == keeper.EngineStage && !c.row.Systemd {
		if err := cgroups.RemovePaths(maps.Clone(join.Cgroups)); err != nil {
			return err
		}
		c.lib = nil
		return os.RemoveAll(dir)
	}
	lib := c.lib
	if lib == nil {
		var err error
		lib, err = libcontainer.Load(r.s.stateRoot(), c.id)
		if errors.Is(err, libcontainer.ErrNotExist) {
			// It was cut off before libcontainer wrote its state down.
			if err := cgroupdir.DestroySpec(c.id, c.row.CgroupsPath, c.row.Systemd); err != nil {
				return err
			}
			return os.RemoveAll(dir)
		}
		if err != nil { // the file is spoilt, and the row says what there is
			c.log.Error("libcontainer's state is unreadable; its cgroups are removed without it", "error", err)
			c.mu.Lock()
			kept := maps.Clone(c.row.Cgroups)
			c.mu.Unlock()
			if err := errors.Join(cgroupdir.DestroySpec(c.id, c.row.CgroupsPath, c.row.Systemd), cgroupdir.KillAll(kept), cgroups.RemovePaths(kept)); err != nil {
				return err
			}
			return os.RemoveAll(dir)
		}
	}
	if err := lib.Destroy(); err != nil {
		return err
	}
	c.lib = nil
	return nil
}

// checkProcess refuses what no engine does.
func checkProcess(p *specs.Process) error {
	if p == nil || len(p.Args) == 0 || p.Args[0] == "" {
		return fmt.Errorf("process without a command: %w", errdefs.ErrInvalidArgument)
	}
	if !filepath.IsAbs(p.Cwd) {
		return fmt.Errorf("working directory %q is not absolute: %w", p.Cwd, errdefs.ErrInvalidArgument)
	}
	if found := execRefused.find(p); found != "" {
		return fmt.Errorf("process with %s: %w", found, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkConfig refuses what specconv and libcontainer's own checks let pass, and libcontainer then leaves out.
func checkConfig(spec *specs.Spec, config *configs.Config) error {
	if l := spec.Linux; len(l.UIDMappings)+len(l.GIDMappings) > 0 && !config.Namespaces.Contains(configs.NEWUSER) {
		return fmt.Errorf("spec with mappings of user or group IDs, and without a user namespace: %w", errdefs.ErrInvalidArgument)
	}
	for _, m := range config.Mounts {
		if m.RecAttr != nil && !m.IsBind() {
			return fmt.Errorf("mount at %q with recursive options, which are for bind mounts: %w", m.Destination, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// newProcess is an OCI process as libcontainer has it.
func newProcess(p *specs.Process) (*libcontainer.Process, error) {
	if err := checkProcess(p); err != nil {
		return nil, err
	}
	lp := &libcontainer.Process{
		LogLevel: initLogLevel,
		Args:     p.Args, Env: p.Env, UID: int(p.User.UID), GID: int(p.User.GID), Cwd: p.Cwd, Label: p.SelinuxLabel,
		NoNewPrivileges: &p.NoNewPrivileges, AppArmorProfile: p.ApparmorProfile,
		Scheduler: p.Scheduler, IOPriority: p.IOPriority,
	}
	for _, g := range p.User.AdditionalGids {
		lp.AdditionalGroups = append(lp.AdditionalGroups, int(g))
	}
	if p.ConsoleSize != nil {
		lp.ConsoleWidth, lp.ConsoleHeight = uint16(min(p.ConsoleSize.Width, math.MaxUint16)), uint16(min(p.ConsoleSize.Height, math.MaxUint16))
	}
	if c := p.Capabilities; c != nil {
		lp.Capabilities = &configs.Capabilities{
			Bounding: c.Bounding, Effective: c.Effective, Inheritable: c.Inheritable,
			Permitted: c.Permitted, Ambient: c.Ambient,
		}
	}
	for _, r := range p.Rlimits {
		n, ok := stage.LimitNumbers[r.Type]
		if !ok {
			return nil, fmt.Errorf("limit %q: %w", r.Type, errdefs.ErrInvalidArgument)
		}
		lp.Rlimits = append(lp.Rlimits, configs.Rlimit{Type: n, Hard: r.Hard, Soft: r.Soft})
	}
	var err error
	if lp.CPUAffinity, err = configs.ConvertCPUAffinity(p.ExecCPUAffinity); err != nil {
		return nil, fmt.Errorf("CPU affinity: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return lp, nil
}

// mergeResources lays what is set in res over what a container has.
func mergeResources(have *cgroups.Resources, res *specs.LinuxResources) (*cgroups.Resources, error) {
	r := *have
	if c := res.CPU; c != nil {
		set(&r.CpuShares, c.Shares)
		set(&r.CpuPeriod, c.Period)
		set(&r.CpuQuota, c.Quota)
		set(&r.CpuRtPeriod, c.RealtimePeriod)
		set(&r.CpuRtRuntime, c.RealtimeRuntime)
		if c.Burst != nil {
			r.CpuBurst = c.Burst
		}
		if c.Idle != nil {
			r.CPUIdle = c.Idle
		}
		if c.Cpus != "" {
			r.CpusetCpus = c.Cpus
		}
		if c.Mems != "" {
			r.CpusetMems = c.Mems
		}
		// On v2 the weight is what counts, and it was made of the shares when the container was created.
		if c.Shares != nil {
			r.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(*c.Shares)
		}
	}
	if m := res.Memory; m != nil {
		set(&r.Memory, m.Limit)
		set(&r.MemorySwap, m.Swap)
		set(&r.MemoryReservation, m.Reservation)
		if m.Swappiness != nil {
			r.MemorySwappiness = m.Swappiness
		}
		if m.DisableOOMKiller != nil {
			r.OomKillDisable = *m.DisableOOMKiller
		}
		if m.CheckBeforeUpdate != nil {
			r.MemoryCheckBeforeUpdate = *m.CheckBeforeUpdate
		}
	}
	if p := res.Pids; p != nil && p.Limit != nil {
		r.PidsLimit = p.Limit
	}
	if b := res.BlockIO; b != nil {
		if b.Weight != nil {
			r.BlkioWeight = *b.Weight
		}
		if b.LeafWeight != nil {
			r.BlkioLeafWeight = *b.LeafWeight
		}
		for _, d := range b.WeightDevice {
			var w, lw uint16
			set(&w, d.Weight)
			set(&lw, d.LeafWeight)
			r.BlkioWeightDevice = replaceDevice(r.BlkioWeightDevice, cgroups.NewWeightDevice(d.Major, d.Minor, w, lw),
				func(w *cgroups.WeightDevice) cgroups.BlockIODevice { return w.BlockIODevice })
		}
		for _, t := range []struct {
			to   *[]*cgroups.ThrottleDevice
			from []specs.LinuxThrottleDevice
		}{
			{&r.BlkioThrottleReadBpsDevice, b.ThrottleReadBpsDevice},
			{&r.BlkioThrottleWriteBpsDevice, b.ThrottleWriteBpsDevice},
			{&r.BlkioThrottleReadIOPSDevice, b.ThrottleReadIOPSDevice},
			{&r.BlkioThrottleWriteIOPSDevice, b.ThrottleWriteIOPSDevice},
		} {
			for _, d := range t.from {
				*t.to = replaceDevice(*t.to, cgroups.NewThrottleDevice(d.Major, d.Minor, d.Rate),
					func(t *cgroups.ThrottleDevice) cgroups.BlockIODevice { return t.BlockIODevice })
			}
		}
	}
	for _, h := range res.HugepageLimits {
		limits := make([]*cgroups.HugepageLimit, 0, len(r.HugetlbLimit)+1)
		for _, l := range r.HugetlbLimit {
			if l.Pagesize != h.Pagesize {
				limits = append(limits, l)
			}
		}
		r.HugetlbLimit = append(limits, &cgroups.HugepageLimit{Pagesize: h.Pagesize, Limit: h.Limit})
	}
	if len(res.Unified) > 0 {
		unified := map[string]string{}
		for k, v := range r.Unified {
			unified[k] = v
		}
		for k, v := range res.Unified {
			if strings.ContainsAny(k, "/\x00") {
				return nil, fmt.Errorf("cgroup file %q: %w", k, errdefs.ErrInvalidArgument)
			}
			unified[k] = v
		}
		r.Unified = unified
	}
	if found := startRefused.find(res); found != "" {
		return nil, fmt.Errorf("resources with %s: %w", found, errdefs.ErrInvalidArgument)
	}
	if len(res.Devices) > 0 || res.Network != nil || len(res.Rdma) > 0 {
		return nil, fmt.Errorf("devices, network and RDMA limits of a running container: %w", errdefs.ErrNotImplemented)
	}
	return &r, nil
}

// replaceDevice is a list with what it says of one device replaced. The list itself is the container's, and not written to.
func replaceDevice[T any](list []*T, with *T, device func(*T) cgroups.BlockIODevice) []*T {
	out := make([]*T, 0, len(list)+1)
	for _, d := range list {
		if device(d) != device(with) {
			out = append(out, d)
		}
	}
	return append(out, with)
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// removeState removes a container of which there is a state directory and no row.
func (r *inProcess) removeState(ctx context.Context, c *container) error {
	lib, err := libcontainer.Load(r.s.stateRoot(), c.id)
	if err == nil {
		st, err := lib.State()
		if err != nil {
			return err
		}
		if err := cgroupdir.KillAll(st.CgroupPaths); err != nil {
			return err
		}
		cgroupdir.Thaw(st.CgroupPaths)
		if err := lib.Signal(unix.SIGKILL); err != nil && !errors.Is(err, libcontainer.ErrNotRunning) {
			c.log.Warn("kill", "error", err)
		}
	}
	for {
		err := r.destroy(ctx, c)
		if !errors.Is(err, libcontainer.ErrRunning) {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}
