package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/gate"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/stage"
	"berth/internal/rawenv"
)

// process is an exec: a further process of a container.
type process struct {
	c       *container
	started chan struct{} // closed when the start has succeeded or failed
	done    chan struct{} // closed when it has ended
	runErr  error         // valid once started is closed
	endedAt time.Time

	// Guarded by container.mu.
	record record.Exec
	proc   *pidfd.FD
	timer  *time.Timer
	killed bool               // kill it as soon as it has started
	putOff bool               // an upgrade has ended the start, and the client makes the call again
	cancel context.CancelFunc // ends the start; nil: it is over
}

var (
	errEnded = fmt.Errorf("the exec was ended before its program began: %w", context.Canceled)
	// errUncertain is the error of an exec whose keeper ended when it had just let the program begin, or was about to.
	// It is not made again: a command runs once at most.
	errUncertain = fmt.Errorf("the keeper ended as the command began: whether it has run is not known: %w",
		errdefs.ErrAborted)
)

// How long the keeper knows the end of an exec: for as long as a berthd that was restarted may still ask for it.
const (
	execKnown      = 10 * time.Minute
	execTaken      = 30 * time.Second
	maxExecRecords = 1024
	forgetEvery    = time.Second
)

func (s *Server) exec(ctx context.Context, req *api.ExecRequest) (*api.ExecResponse, error) {
	defer s.deliveries.Discard(req.Token)
	if err := record.CheckID("exec", req.ExecId); err != nil {
		return nil, err
	}
	if err := s.gate.Begin(); err != nil {
		return nil, err
	}
	defer s.gate.End()
	p, fresh, err := s.reserveExec(req)
	if err != nil {
		return nil, err
	}
	if fresh {
		var spec specs.Process
		files, err := s.deliveries.Take(req.Token)
		if err == nil {
			if jerr := rawenv.UnmarshalProcess(req.Process, &spec); jerr != nil {
				err = fmt.Errorf("process of exec %s: %w: %w", req.ExecId, jerr, errdefs.ErrInvalidArgument)
			}
		}
		if err != nil {
			closeAll(files)
			p.fail(err)
			return nil, err
		}
		if req.Width > 0 && req.Height > 0 {
			spec.ConsoleSize = &specs.Box{Width: uint(req.Width), Height: uint(req.Height)}
		}
		s.gate.Again()
		go func() {
			defer s.gate.End()
			p.start(&spec, files, req.Session, time.Duration(req.TimeoutNanos))
		}()
	}
	select {
	case <-p.started:
	case <-ctx.Done():
		p.kill(false)
		return nil, fmt.Errorf("exec in container %s: %w", req.ContainerId, ctx.Err())
	}
	if p.runErr != nil {
		if se := startError(p.runErr); se != nil {
			return &api.ExecResponse{Error: se}, nil
		}
		return nil, fmt.Errorf("exec in container %s: %w", req.ContainerId, p.runErr)
	}
	return &api.ExecResponse{Pid: int32(p.record.PID)}, nil
}

// reserveExec makes the record, or finds that this very call has done so already.
func (s *Server) reserveExec(req *api.ExecRequest) (p *process, fresh bool, err error) {
	c, err := s.find(req.ContainerId)
	if err != nil {
		return nil, false, err
	}
	var forgotten []string
	defer func() {
		for _, id := range forgotten {
			c.s.escrow.release(execKey(c.id, id))
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.execs[req.ExecId]
	if ok && req.Nonce != "" && old.record.Nonce == req.Nonce {
		return old, false, nil
	}
	if !ok && c.awaitsExecs() {
		return nil, false, fmt.Errorf("exec %s: %w", req.ExecId, errHandback)
	}
	if c.record.State != protocol.StateRunning || c.removed {
		return nil, false, fmt.Errorf("container %s is %s, not running: %w",
			c.id, c.record.State, errdefs.ErrFailedPrecondition)
	}
	if ok {
		return nil, false, fmt.Errorf("exec %s: %w", req.ExecId, errdefs.ErrAlreadyExists)
	}
	if err := protocol.Room(protocol.RoomForExec); err != nil {
		return nil, false, fmt.Errorf("exec %s: %w", req.ExecId, err)
	}
	if err := s.containers.withdrawn.check(req.Nonce); err != nil {
		return nil, false, fmt.Errorf("exec %s: %w", req.ExecId, err)
	}
	forgotten = c.forgetExecs()
	p = newExec(c, record.Exec{ContainerID: c.id, ExecID: req.ExecId, Nonce: req.Nonce})
	c.execs[req.ExecId] = p
	return p, true, nil
}

// awaitsExecs says whether an exec of the container that is not known may yet be handed back: another keeper has
// started it. The caller holds c.mu.
func (c *container) awaitsExecs() bool { return c.record.Orphan && !c.s.adoption.handbackOver() }

func newExec(c *container, r record.Exec) *process {
	return &process{c: c, record: r, started: make(chan struct{}), done: make(chan struct{})}
}

// forgetExecs drops execs that have long ended, and names them. The caller holds c.mu. It looks through all of them
// once in a while, and when there are too many it drops a quarter at once: an exec does not wait for a look at a
// thousand. Those whose end was asked for go first, since their end counts as long past; the others are about to be
// asked for.
func (c *container) forgetExecs() (ids []string) {
	limit, now := maxExecRecords, time.Now()
	switch {
	case len(c.execs) > maxExecRecords:
		limit -= maxExecRecords / 4
	case now.Sub(c.forgot) < forgetEvery:
		return nil
	}
	c.forgot = now
	var ended []*process
	for _, p := range c.execs {
		select {
		case <-p.done:
			ended = append(ended, p)
		default:
		}
	}
	over := len(c.execs) - limit
	if over > 0 {
		slices.SortFunc(ended, func(a, b *process) int { return a.endedAt.Compare(b.endedAt) })
	}
	for i, p := range ended {
		if i < over || now.Sub(p.endedAt) > execKnown {
			delete(c.execs, p.record.ExecID)
			ids = append(ids, p.record.ExecID)
		}
	}
	return ids
}

// fail ends an exec that did not start.
func (p *process) fail(err error) {
	p.runErr = err
	p.c.mu.Lock()
	delete(p.c.execs, p.record.ExecID)
	p.c.mu.Unlock()
	close(p.started)
	p.endedAt = time.Now()
	close(p.done)
}

// start has the container's engine start an exec, and then watches its process. p.started is closed when the start has
// succeeded or failed.
func (p *process) start(spec *specs.Process, files map[protocol.Role]int, session string, timeout time.Duration) {
	c := p.c
	settled, end := c.s.orphans.BeginStart("")
	defer end()
	c.s.limits.FitExec(spec)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l := &runtime.Launch{Process: spec, ExecID: p.record.ExecID, Unregister: p.unregister, Settled: settled}
	l.IO = runtime.Stdio{In: file(files, protocol.RoleStdin), Out: file(files, protocol.RoleStdout),
		Err: file(files, protocol.RoleStderr)}
	closeAll(files) // what no exec has
	l.Register = func(res runtime.Started) error { return p.register(res, spec.Terminal, session) }
	c.mu.Lock()
	r := c.record
	p.cancel = cancel
	if p.killed {
		cancel()
	}
	c.mu.Unlock()
	if timeout > 0 {
		switch {
		case r.Proxied(): // the kernel has no process of it, or the keeper does not know it
		case cgroupdir.Unified(r.Cgroups):
			l.Traced = true
		default:
			l.SubDir, l.Sub = cgroupdir.Sub(r.Cgroups, execCgroup+p.record.ExecID)
		}
		c.mu.Lock()
		p.record.Cgroup = l.SubDir
		p.record.Ends, p.record.Deadline = record.Monotonic()+timeout, time.Now().Add(timeout)
		p.timer = time.AfterFunc(timeout, func() { p.kill(true) })
		c.mu.Unlock()
	}
	err := c.s.runtime.Exec(ctx, c, l)
	l.IO.Close()
	c.mu.Lock()
	p.cancel = nil
	putOff, killed := p.putOff, p.killed
	c.mu.Unlock()
	if err != nil {
		p.undoStart(l.SubDir)
		if p.timedOutBeforeStart(spec.Terminal) {
			return
		}
		select {
		case <-c.exited:
			err = fmt.Errorf("container %s has ended: %w", c.id, errdefs.ErrFailedPrecondition)
		default:
		}
		if errors.Is(err, stage.ErrInterrupted) {
			err = errEnded
			if putOff && !killed {
				err = gate.ErrUpgrading
			}
		}
		p.fail(err)
		return
	}
	c.mu.Lock()
	proc := p.proc
	killed = p.killed
	p.record.Prepared = false
	c.mu.Unlock()
	c.s.watching.Go(func() { p.watch(proc) })
	if killed {
		p.kill(false)
	}
	close(p.started)
}

// undoStart removes what there is of an exec whose start has failed. subDir is its cgroup; empty: it has none.
func (p *process) undoStart(subDir string) {
	p.unregister()
	if p.timer != nil {
		p.timer.Stop()
	}
	if subDir != "" {
		_ = cgroupdir.Kill(subDir)
		cgroupdir.Remove(subDir)
	}
}

// timedOutBeforeStart ends an exec whose time limit was reached before its program could begin, as one that was killed.
// It is false for an exec whose start has failed for another reason.
func (p *process) timedOutBeforeStart(terminal bool) bool {
	p.c.mu.Lock()
	late := p.record.TimedOut && !terminal
	if late {
		p.record.Exited, p.record.ExitCode = true, 128+int(unix.SIGKILL)
		p.endedAt = time.Now()
	}
	p.c.mu.Unlock()
	if late {
		close(p.started)
		close(p.done)
	}
	return late
}

// putOffExecs ends the starts of execs that hold up an upgrade and whose programs certainly have not begun: those of
// stages that are not registered yet. The container may be frozen, so that they do not get into it.
func (c *container) putOffExecs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record.Join == nil {
		return
	}
	for _, p := range c.execs {
		if p.cancel != nil && p.record.PID == 0 {
			p.putOff = true
			p.cancel()
		}
	}
}

// register takes a process that has been started into the keeper's tables, and returns when it is in escrow:
// a client that was told that the process runs can learn its end from the next keeper too. A terminal's master goes to
// the client that asked for the exec.
func (p *process) register(res runtime.Started, terminal bool, session string) error {
	c := p.c
	if terminal {
		if err := p.sendConsole(session, res.Console); err != nil {
			return err
		}
	}
	proc, err := pidfd.Open(res.PID, true)
	if err != nil {
		return err
	}
	start, _ := pidfd.StartTime(res.PID)
	c.mu.Lock()
	p.record.PID, p.record.Start, p.record.Prepared = res.PID, start, res.Waits
	p.record.Inner = res.Inner
	p.record.CgroupNamespace, p.record.Marked = res.CgroupNamespace, res.Marked
	p.proc = proc
	killed, putOff := p.killed, p.putOff
	c.mu.Unlock()
	switch {
	case killed:
		return errEnded
	case putOff && res.Waits:
		return gate.ErrUpgrading
	}
	if err := c.s.escrow.putExec(p).wait(c.log, escrowWait); err != nil {
		if res.Waits {
			return err
		}
		c.log.Warn("an exec runs and is not in escrow", "exec_id", p.record.ExecID, "error", err)
	}
	return nil
}

// unregister kills a process that register has taken, and takes it out of the tables; whatever is left of it is reaped
// as an orphan. It is false where register has taken none.
func (p *process) unregister() bool {
	c := p.c
	c.mu.Lock()
	proc := p.proc
	p.proc = nil
	c.mu.Unlock()
	if proc == nil {
		return false
	}
	c.s.escrow.release(execKey(c.id, p.record.ExecID))
	_ = proc.Signal(unix.SIGKILL)
	_, _ = unix.Wait4(proc.PID(), nil, unix.WNOHANG, nil)
	proc.Close()
	return true
}

// sendConsole sends a terminal's master to the client that asked for the exec, and keeps no copy.
func (p *process) sendConsole(session string, fd int) error {
	ses := p.c.s.sessions.Get(session)
	if ses == nil {
		unix.Close(fd)
		return fmt.Errorf("exec %s: nobody takes the terminal: %w", p.record.ExecID, errdefs.ErrFailedPrecondition)
	}
	ses.Push(&protocol.Packet{
		Kind: protocol.Console, ID: execKey(p.record.ContainerID, p.record.ExecID),
		Roles: []protocol.Role{protocol.RoleConsole}, FDs: []int{fd},
	})
	return nil
}

func (p *process) watch(proc *pidfd.FD) {
	exit, err := proc.Wait()
	if errors.Is(err, pidfd.ErrStopped) {
		return
	}
	p.ended(exit)
}

func (p *process) ended(exit pidfd.Exit) {
	c := p.c
	c.mu.Lock()
	if p.record.Exited {
		c.mu.Unlock()
		return
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	proc := p.proc
	p.proc = nil
	p.record.Exited, p.record.ExitCode = true, exit.Code
	p.endedAt = time.Now()
	dir := p.record.Cgroup
	c.mu.Unlock()
	if proc != nil {
		proc.Close()
	}
	if dir != "" && cgroupdir.Remove(dir) {
		dir = ""
	}
	close(p.done)
	c.sweepExecCgroups(dir)
}

// kill ends the exec with all that it has started.
func (p *process) kill(timeout bool) {
	c := p.c
	c.mu.Lock()
	p.killed = true
	if timeout && !p.record.Exited {
		p.record.TimedOut = true
	}
	if p.cancel != nil {
		p.cancel()
	}
	proc, dir, paths, r := p.proc, p.record.Cgroup, c.record.Cgroups, p.record
	if c.isReused(&r) {
		r.CgroupNamespace = ""
	}
	inner, proxied, shim, starts := p.record.Inner, c.record.Proxied(), c.record.Shim != nil, p.cancel != nil
	c.mu.Unlock()
	switch {
	case proxied:
		if proc == nil || starts {
			break // it has ended, or its start ends
		}
		ctx, cancel := context.WithTimeout(context.Background(), removeWait)
		defer cancel()
		err := c.s.runtime.KillExec(ctx, c, p.record.ExecID, inner)
		if err != nil {
			c.log.Error("kill exec", "exec_id", p.record.ExecID, "error", err)
		} else if shim {
			return // the proxy ends as the exec does
		}
	case dir != "":
		// Also while it is being started: it is in this cgroup from the moment that it can run anything.
		if err := cgroupdir.Kill(dir); err != nil {
			c.log.Error("kill exec", "exec_id", p.record.ExecID, "error", err)
		}
	case proc != nil:
		runtime.KillStarted(&r, paths)
	}
	if proc != nil {
		_ = proc.Signal(unix.SIGKILL)
	}
}

// isReused says whether a later exec has a cgroup namespace with the name of this one's. The name is free again once no
// process is in the namespace: the first process of this exec has entered another one. The caller holds c.mu.
func (c *container) isReused(r *record.Exec) bool {
	if r.CgroupNamespace == "" {
		return false
	}
	for _, other := range c.execs {
		o := &other.record
		if o.ExecID != r.ExecID && o.CgroupNamespace == r.CgroupNamespace && o.Start >= r.Start {
			return true
		}
	}
	return false
}

func (s *Server) getExec(id *api.ExecID) (*process, error) {
	c, err := s.find(id.ContainerId)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.execs[id.ExecId]; ok {
		return p, nil
	}
	if c.awaitsExecs() {
		return nil, fmt.Errorf("exec %s: %w", id.ExecId, errHandback)
	}
	return nil, fmt.Errorf("exec %s in container %s: %w", id.ExecId, id.ContainerId, errdefs.ErrNotFound)
}

func (s *Server) waitExec(ctx context.Context, id *api.ExecID) (*api.ExecExit, error) {
	p, err := s.getExec(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for exec %s: %w", id.ExecId, ctx.Err())
	case <-s.gate.Stopped():
		return nil, gate.ErrUpgrading
	}
	if p.runErr != nil {
		return nil, p.runErr
	}
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	// The client asks again if the answer does not arrive, so the end is not forgotten at once.
	p.endedAt = time.Now().Add(execTaken - execKnown)
	return &api.ExecExit{ExitCode: int32(p.record.ExitCode), TimedOut: p.record.TimedOut}, nil
}
