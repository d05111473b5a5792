package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "berth/api/keeper"
	"berth/internal/disk"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/loglimit"
	"berth/internal/rawenv"
)

// run starts a container. The start continues if the caller stops waiting.
func (s *Server) run(ctx context.Context, req *api.RunRequest) (*api.RunResponse, error) {
	defer s.deliveries.Discard(req.GetAttach().GetToken())
	err := record.CheckID("container", req.Id)
	if err == nil && req.Attach != nil {
		err = checkSpillDir(req.Attach)
	}
	if err != nil {
		return nil, err
	}
	if err := s.gate.Begin(); err != nil {
		return nil, err
	}
	defer s.gate.End()
	c, err := s.reserve(req)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.started:
	case <-ctx.Done():
		return nil, fmt.Errorf("start container %s: %w", req.Id, ctx.Err())
	}
	if c.runErr != nil {
		if se := startError(c.runErr); se != nil {
			return &api.RunResponse{Error: se}, nil
		}
		return nil, fmt.Errorf("start container %s: %w", req.Id, c.runErr)
	}
	st := c.status()
	return &api.RunResponse{Pid: int32(st.PID), StartedAt: timestamppb.New(st.StartedAt), Phases: c.phases,
		Setup: wireSetup(st.Setup)}, nil
}

// reserve checks the request, puts the container into the table and begins its start in a goroutine. A call that is
// repeated with the same nonce gets the container that the first call has put there.
func (s *Server) reserve(req *api.RunRequest) (*container, error) {
	var spec specs.Spec
	if err := rawenv.UnmarshalSpec(req.Spec, &spec); err != nil {
		return nil, fmt.Errorf("spec of container %s: %w: %w", req.Id, err, errdefs.ErrInvalidArgument)
	}
	if err := checkRun(req, &spec); err != nil {
		return nil, err
	}
	shim, err := s.checkSandbox(req)
	if err != nil {
		return nil, err
	}
	c := s.newContainer(s.newRecord(req, &spec, shim))
	if req.Attach != nil {
		files, err := s.deliveries.Take(req.Attach.Token)
		if err != nil {
			return nil, err
		}
		c.first = &firstClient{req.Attach, files}
	}
	if s.adoption.mayReturn(req.Id) {
		c.dropFirst()
		return nil, fmt.Errorf("start container %s: %w", req.Id, errHandback)
	}
	if err := s.adoption.checkUndone(req.Id); err != nil {
		c.dropFirst()
		return nil, fmt.Errorf("start container %s: %w", req.Id, err)
	}
	old, err := s.containers.addNew(c)
	if err != nil {
		c.dropFirst()
		return nil, fmt.Errorf("start container %s: %w", req.Id, err)
	}
	if old != nil {
		c.dropFirst()
		old.mu.Lock()
		defer old.mu.Unlock()
		if req.Nonce != "" && old.record.Nonce == req.Nonce {
			return old, nil
		}
		return nil, fmt.Errorf("container %s: %w", req.Id, errdefs.ErrAlreadyExists)
	}
	s.gate.Again()
	go func() {
		defer s.gate.End()
		c.start(&runtime.Launch{Spec: &spec, Phases: runtime.NewPhases(), Restore: req.Restore, CRIU: req.Criu})
	}()
	return c, nil
}

// checkRun checks the fields of a request that need no other container.
func checkRun(req *api.RunRequest, spec *specs.Spec) error {
	switch choice := protocol.SetupChoice(req.Setup); {
	case spec.Process == nil || spec.Root == nil || spec.Linux == nil:
		return fmt.Errorf("spec of container %s lacks process, root or linux: %w", req.Id, errdefs.ErrInvalidArgument)
	case !filepath.IsAbs(spec.Root.Path):
		return fmt.Errorf("root %q of container %s is not absolute: %w", spec.Root.Path, req.Id, errdefs.ErrInvalidArgument)
	case req.LogPath != "" && !filepath.IsAbs(req.LogPath):
		return fmt.Errorf("log path %q of container %s is not absolute: %w", req.LogPath, req.Id,
			errdefs.ErrInvalidArgument)
	case req.RuntimePath != "" && !filepath.IsAbs(req.RuntimePath):
		return fmt.Errorf("runtime %q of container %s is not absolute: %w", req.RuntimePath, req.Id,
			errdefs.ErrInvalidArgument)
	case req.Restore != "" && !filepath.IsAbs(req.Restore):
		return fmt.Errorf("images %q of container %s are not at an absolute path: %w", req.Restore, req.Id,
			errdefs.ErrInvalidArgument)
	case req.Restore != "" && req.RuntimePath != "":
		return fmt.Errorf("restore container %s with %s: only the built-in runtime restores: %w", req.Id,
			req.RuntimePath, errdefs.ErrNotImplemented)
	case choice != "" && choice != protocol.SetupStage && choice != protocol.SetupLibcontainer:
		return fmt.Errorf("setup %q of container %s is neither %s nor %s: %w", req.Setup, req.Id, protocol.SetupStage,
			protocol.SetupLibcontainer, errdefs.ErrInvalidArgument)
	case choice != "" && req.RuntimePath != "":
		return fmt.Errorf("setup %q of container %s, which %s sets up: %w", req.Setup, req.Id, req.RuntimePath,
			errdefs.ErrInvalidArgument)
	}
	limits := logLimits(req.LogLimits)
	if err := limits.Check(); err != nil {
		return fmt.Errorf("container %s: %w", req.Id, err)
	}
	return nil
}

// newRecord is the record of a container whose start begins.
func (s *Server) newRecord(req *api.RunRequest, spec *specs.Spec, shim *record.Shim) record.Container {
	r := record.Container{
		ID: req.Id, Nonce: req.Nonce, PodID: req.PodId, Name: req.Name, LogPath: req.LogPath,
		LogLimits: logLimits(req.LogLimits), Runtime: req.RuntimePath, RuntimeRoot: req.RuntimeRoot,
		Systemd: req.SystemdCgroup, Sandbox: req.Sandbox, RuntimeFlags: req.RuntimeFlags, Shim: shim,
		Stdin: req.Stdin, StdinOnce: req.StdinOnce, Terminal: spec.Process.Terminal, Reaper: req.Reaper,
		Root: spec.Root.Path, CgroupsPath: spec.Linux.CgroupsPath, State: protocol.StateStarting,
		Choice: protocol.SetupChoice(req.Setup),
	}
	r.SharedPIDs = r.Sandbox != "" && !slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.PIDNamespace
	})
	if r.Runtime != "" && r.RuntimeRoot == "" && r.Shim == nil {
		r.RuntimeRoot = s.dir().State("." + filepath.Base(r.Runtime))
	}
	return r
}

// checkSandbox checks the sandbox that a container is to be made in. For a container of a shim, it returns what the
// shim is told, and where that of the sandbox is.
func (s *Server) checkSandbox(req *api.RunRequest) (*record.Shim, error) {
	var shim *record.Shim
	if req.Shim != nil {
		shim = &record.Shim{OptionsType: req.Shim.OptionsType, Options: req.Shim.Options}
		if req.RuntimePath == "" || req.Sandbox == "" && !req.Reaper {
			return nil, fmt.Errorf("shim of container %s: it needs a path, and a pod whose sandbox the container makes, or is "+
				"in: %w", req.Id, errdefs.ErrInvalidArgument)
		}
	}
	switch {
	case req.Sandbox == "":
		return shim, nil
	case req.RuntimePath == "":
		return nil, fmt.Errorf("sandbox %s of container %s: the built-in runtime has no sandboxes: %w", req.Sandbox, req.Id,
			errdefs.ErrInvalidArgument)
	case req.Sandbox == req.Id || req.Reaper:
		return nil, fmt.Errorf("sandbox %s of container %s: a container that makes a sandbox is in no other: %w", req.Sandbox,
			req.Id, errdefs.ErrInvalidArgument)
	}
	c, err := s.find(req.Sandbox)
	if err != nil {
		return nil, fmt.Errorf("sandbox of container %s: %w", req.Id, err)
	}
	r := c.Record()
	if r.State != protocol.StateRunning || r.Runtime != req.RuntimePath || (r.Shim == nil) != (shim == nil) {
		return nil, fmt.Errorf("sandbox %s of container %s: it is %s, of the runtime %q, and not running by %q: %w",
			req.Sandbox, req.Id, r.State, r.Runtime, req.RuntimePath, errdefs.ErrFailedPrecondition)
	}
	if shim != nil {
		shim.Address, shim.Version, shim.PID, shim.Start = r.Shim.Address, r.Shim.Version, r.Shim.PID, r.Shim.Start
	}
	return shim, nil
}

// logLimits are those of a request, none if it has none.
func logLimits(l *api.LogLimits) loglimit.Limits {
	return loglimit.Limits{MaxSize: l.GetMaxSize(), MaxFiles: int(l.GetMaxFiles()), Rate: l.GetRate(), Burst: l.GetBurst(),
		Over: loglimit.Over(l.GetOver())}
}

// start runs launch, records the result, and wakes the callers that wait for it.
func (c *container) start(l *runtime.Launch) {
	settled, end := c.s.orphans.BeginStart(c.id)
	l.Settled = settled
	err := c.launch(l)
	if err != nil {
		c.log.Info("container did not start", "container", c.record.Name, "error", err)
		c.runErr = err
		c.dropFirst()
		// The record goes first: a start of the same ID, which is refused until then, has one of the same name.
		if ferr := c.forget(); ferr != nil {
			c.log.Error("remove the container's record", "error", ferr)
		}
		c.s.containers.remove(c)
	}
	close(c.started)
	end()
	c.s.events.Publish(c.id)
}

// launch starts the container: it writes the record, makes the pipes, and has the engine make the process, which calls
// register back. If a step fails, launch undoes all steps, except the record, which start removes.
func (c *container) launch(l *runtime.Launch) (err error) {
	s, spec := c.s, l.Spec
	if err := protocol.Room(protocol.RoomForContainer); err != nil {
		return err
	}
	// The record comes first: if this keeper is killed, the next one finds it and removes everything of the container.
	r := c.record
	if err := s.table.Save(&r); err != nil {
		return err
	}
	s.limits.Fit(spec.Process)
	if r.Reaper {
		if err := s.inits.podInit(spec); err != nil {
			return err
		}
	}
	ends := ends{in: -1, out: -1, err: -1}
	if !r.Terminal {
		if err := ends.open(l, r.Stdin); err != nil {
			return err
		}
	}
	log := logpump.New(r.LogPath, s.backlogs, c.log)
	log.Limit(r.LogLimits, true)
	l.Register = func(res runtime.Started) error {
		if err := c.targetLives(spec); err != nil {
			return err
		}
		return c.register(res, &ends, log)
	}
	l.Unregister = c.unregister
	err = s.runtime.Start(context.Background(), c, l)
	l.IO.Close()
	if err != nil {
		c.unregister()
		ends.close()
		log.Close()
		if r.Reaper {
			s.inits.removePodInit(&r)
		}
		if rerr := os.RemoveAll(s.dir().Bundle(c.id)); rerr != nil {
			c.log.Warn("remove bundle", "error", rerr)
		}
		return err
	}
	c.mu.Lock()
	r, proc := *c.prepared, c.proc
	c.prepared = nil
	c.mu.Unlock()
	r.Prepared, r.Waits = false, ""
	c.change(func(to *record.Container) { *to = r })
	l.Phases.End("record")
	c.phases = l.Phases.List
	c.log.Info("container started", "container", r.Name, "pid", r.PID)
	s.watching.Go(func() { c.watch(proc) })
	return nil
}

// register takes a process that is set up, and whose program has not begun, into the keeper's tables. It returns when
// the process is in escrow. So neither the program's output nor its exit code is lost if this keeper is killed. The
// container owns the terminal and the pipes from now on.
func (c *container) register(res runtime.Started, e *ends, log *logpump.Log) error {
	if c.record.Terminal {
		e.out = res.Console
	}
	if err := c.joinFirst(log); err != nil {
		return err
	}
	proc, err := pidfd.Open(res.PID, true)
	if err != nil {
		return err
	}
	start, err := pidfd.StartTime(res.PID)
	if err != nil {
		proc.Close()
		return err
	}
	pumps, err := e.pumps(log)
	if err != nil {
		proc.Close()
		return err
	}
	for _, p := range pumps {
		p.Start()
	}
	waits := ""
	if res.Setup.Engine != protocol.EngineStage {
		waits = waitingLine(res.PID)
	}
	c.s.oom.Begin(res.Cgroups)
	c.mu.Lock()
	r := c.record
	r.State, r.Prepared, r.StartedAt = protocol.StateRunning, true, time.Now()
	r.PID, r.Start, r.Cgroups, r.SandboxPID = res.PID, start, res.Cgroups, res.Sandbox
	r.Shim = cmp.Or(res.Shim, r.Shim)
	r.SetSetup(res.Setup, res.Join)
	r.Waits = waits
	if c.stdinClosed && e.in >= 0 { // the client that was to bring the input has just been cut off
		unix.Close(e.in)
		e.in = -1
	}
	c.proc, c.out, c.pumps, c.stdin, c.prepared = proc, log, pumps, e.in, &r
	c.mu.Unlock()
	e.in = -1
	if err := c.s.table.Save(&r); err != nil {
		return err
	}
	return c.s.escrow.put(c).wait(c.log, escrowWait)
}

// commandLine reads a process's arguments. A test replaces it.
var commandLine = procfs.CommandLine

// waitingLine returns the command line of a process that waits to become a container's program. The process may just
// have been executed: until the kernel has set its arguments, it has none.
func waitingLine(pid int) string {
	for deadline := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		over := time.Now().After(deadline) // before the look: the machine may stand still during it
		line := commandLine(pid)
		if line != "" || over {
			return line
		}
		if f := procfs.Status(pid); len(f) == 0 || f[0] == "Z" {
			return "" // it has ended
		}
	}
}

// targetLives fails if the specification names the PID namespace of a process that is none of a running container of
// the same pod, by a path below /proc. The process ID may have been another container's when berthd looked, whose end
// has made it free for any process of the node, and for a container of any pod. A container that runs now has had the
// ID since then: so it is its namespace that the new one has joined.
func (c *container) targetLives(spec *specs.Spec) error {
	for _, ns := range spec.Linux.Namespaces {
		var pid int
		if ns.Type != specs.PIDNamespace {
			continue
		}
		if n, _ := fmt.Sscanf(ns.Path, "/proc/%d/ns/pid", &pid); n == 0 {
			continue
		}
		for _, other := range c.s.containers.all() {
			r := other.Record()
			if cmp.Or(r.SandboxPID, r.PID) == pid && r.PodID == c.record.PodID && r.State == protocol.StateRunning &&
				pidfd.Alive(r.PID, r.Start) {
				return nil
			}
		}
		return fmt.Errorf("join the PID namespace %s: it is not that of a running container of the pod any more: %w",
			ns.Path, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// firstClient is a client that is to be attached before the program begins, with its files.
type firstClient struct {
	request *api.AttachRequest
	files   map[protocol.Role]int
}

// joinFirst attaches the client that came with the request to start the container, if there is one.
func (c *container) joinFirst(log *logpump.Log) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.first
	if first == nil {
		return nil
	}
	c.first = nil
	return c.join(log, first.request, first.files)
}

// dropFirst closes the files of a client whose container does not start. The client reads end-of-file.
func (c *container) dropFirst() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first != nil {
		closeAll(c.first.files)
		c.first = nil
	}
}

// unregister kills the process that register has taken, and removes it from the tables. It returns false if register
// has taken no process.
func (c *container) unregister() bool {
	c.mu.Lock()
	if c.prepared == nil {
		c.mu.Unlock()
		return false
	}
	proc, pumps, stdin, paths := c.proc, c.pumps, c.stdin, c.prepared.Cgroups
	c.proc, c.out, c.pumps, c.stdin, c.prepared = nil, nil, map[logpump.Stream]*logpump.Pump{}, -1, nil
	c.mu.Unlock()
	c.s.escrow.release(c.id)
	_ = proc.Signal(unix.SIGKILL)
	_, _ = proc.Wait()
	proc.Close()
	c.s.oom.End(paths)
	for _, p := range pumps {
		p.End()
		<-p.Done()
	}
	if stdin >= 0 {
		unix.Close(stdin)
	}
	return true
}

// ends are the keeper's ends of a container's pipes, -1 where there is none.
type ends struct{ in, out, err int }

// open makes the pipes. The keeper's ends do not block.
func (e *ends) open(l *runtime.Launch, stdin bool) (err error) {
	defer func() {
		if err != nil {
			l.IO.Close()
			e.close()
		}
	}()
	pipe := func() (r, w int, err error) {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return -1, -1, os.NewSyscallError("pipe2", err)
		}
		return p[0], p[1], nil
	}
	var r, w int
	if r, w, err = pipe(); err != nil {
		return err
	}
	e.out, l.IO.Out = r, os.NewFile(uintptr(w), "stdout")
	if r, w, err = pipe(); err != nil {
		return err
	}
	e.err, l.IO.Err = r, os.NewFile(uintptr(w), "stderr")
	if stdin {
		if r, w, err = pipe(); err != nil {
			return err
		}
		e.in, l.IO.In = w, os.NewFile(uintptr(r), "stdin")
		if err := unix.SetNonblock(w, true); err != nil {
			return err
		}
	}
	return nil
}

// pumps makes the pumps of the output, which own the descriptors from then on. After an error there are none, and what
// they had is closed.
func (e *ends) pumps(log *logpump.Log) (map[logpump.Stream]*logpump.Pump, error) {
	pumps := map[logpump.Stream]*logpump.Pump{}
	for _, of := range []struct {
		stream logpump.Stream
		fd     *int
	}{{logpump.Stdout, &e.out}, {logpump.Stderr, &e.err}} {
		stream, fd := of.stream, of.fd
		if *fd < 0 {
			continue
		}
		p, err := logpump.NewPump(log, stream, *fd)
		*fd = -1 // the pump's; NewPump has closed it if it has failed
		if err != nil {
			for _, p := range pumps {
				p.Close()
			}
			return nil, fmt.Errorf("take %s: %w", stream, err)
		}
		pumps[stream] = p
	}
	return pumps, nil
}

func (e *ends) close() {
	for _, fd := range []int{e.in, e.out, e.err} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

var (
	// execError matches the errors of runtimes that say that a program cannot be executed.
	execError = regexp.MustCompile(
		`exec: "|^exec /|exec failed|executable (file )?.*not found|exec format error|open executable` +
			`|failed to load /|error finding executable "`) // gVisor
	notFound  = regexp.MustCompile(`executable (file )?.*not found|no such file or directory|not a directory`)
	forbidden = regexp.MustCompile(`permission denied|is a directory|operation not permitted`)
	prefixes  = regexp.MustCompile(
		`^(OCI runtime (create|start|exec) failed: |unable to start container process: |error during container init: ` +
			`|runc create failed: |exec failed: )+`)
)

// startError returns the answer for an error that the container's configuration has caused, with the exit code that a
// shell would give. It returns nil for all other errors.
func startError(err error) *api.StartError {
	if disk.Full(err) {
		return nil
	}
	for _, kind := range []error{
		errdefs.ErrFailedPrecondition, errdefs.ErrUnavailable, errdefs.ErrAborted, errdefs.ErrInvalidArgument,
		errdefs.ErrAlreadyExists,
		errdefs.ErrResourceExhausted,
	} {
		if errors.Is(err, kind) {
			return nil
		}
	}
	msg := strings.TrimSpace(prefixes.ReplaceAllString(err.Error(), ""))
	code := int32(128)
	if execError.MatchString(msg) {
		switch {
		case notFound.MatchString(msg):
			code = 127
		case forbidden.MatchString(msg):
			code = 126
		}
	}
	return &api.StartError{ExitCode: code, Message: msg}
}
