package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/proxy"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
)

// container is a container of the table, with the descriptors that the keeper has open for it.
type container struct {
	s   *Server
	id  string
	log *slog.Logger

	milestones

	mu       sync.Mutex // guards the fields below, unless their comment says otherwise
	record   record.Container
	prepared *record.Container // what record will be once the program begins; nil: it has begun, or is not set up
	proc     *pidfd.FD         // nil: not running, or unknown after another keeper's death
	streams
	attached
	execs   map[string]*process
	forgot  time.Time // when execs that have ended were last dropped
	removed bool
	// removals is how many calls remove the container at this moment.
	removals int
	// ending is set once the end of the init process is being recorded, so that this happens only once.
	ending bool
	filter string // key of the seccomp filter that it is being started with
	// thawed is closed when the checkpoint ends for which the container is frozen; nil: there is none.
	thawed  chan struct{}
	thawing bool // that checkpoint is over, and the container is being thawed
	// endDump ends the writing of that checkpoint, whose end thaws the container; nil: it is written.
	endDump context.CancelFunc
	// saving is held from a change of the record until the record is on disk, so that the file has the last change.
	saving sync.Mutex

	left leftCgroups // has a lock of its own

	guard  *runtime.Guard // see runtime.Container
	loaded any            // an engine's; guarded by guard
}

// milestones are the events in the life of a container that goroutines wait for.
type milestones struct {
	started chan struct{} // closed when the start has succeeded or failed
	runErr  error         // why the start failed; valid once started is closed
	phases  []*api.Phase  // of the start; valid once started is closed
	exited  chan struct{} // closed when the init process has ended
	flushed chan struct{} // closed when all output is in the log
}

// streams are the keeper's ends of a container's output and input. container.mu guards them.
type streams struct {
	out   *logpump.Log
	pumps map[logpump.Stream]*logpump.Pump
	stdin int // the write end of the container's input; -1: none
	// stdinClosed is set once a client has asked to close the input. A write end that is handed back later must not open
	// it again.
	stdinClosed bool
	// draining is set while drain waits for the rest of the output of a container that has ended. drainNext: an upgrade
	// has stopped the pumps and failed meanwhile, and drain has to begin anew.
	draining, drainNext bool
}

// attached are the clients that a container's output is copied to. container.mu guards them.
type attached struct {
	owners  map[string]string // attach ID to the session that brought input with it
	clients map[string]string // attach ID to its session
	first   *firstClient      // is attached when the container's pipes are there; nil: none
}

var _ runtime.Container = (*container)(nil)

// The methods of runtime.Container.

func (c *container) ID() string            { return c.id }
func (c *container) Log() *slog.Logger     { return c.log }
func (c *container) Guard() *runtime.Guard { return c.guard }
func (c *container) Loaded() *any          { return &c.loaded }

func (c *container) Record() record.Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record
}

func (c *container) Process() *pidfd.FD {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proc
}

func (c *container) Thawed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.thawed
}

func (c *container) UseFilter(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filter = key
}

func (s *Server) newContainer(r record.Container) *container {
	return &container{
		s: s, id: r.ID, record: r, log: s.log.With("container_id", r.ID, "pod_id", r.PodID),
		milestones: milestones{started: make(chan struct{}), exited: make(chan struct{}), flushed: make(chan struct{})},
		streams:    streams{stdin: -1, pumps: map[logpump.Stream]*logpump.Pump{}},
		attached:   attached{owners: map[string]string{}, clients: map[string]string{}},
		execs:      map[string]*process{},
		guard:      runtime.NewGuard(),
	}
}

// addOwned adds the init process and the execs of this container for which a goroutine waits.
func (c *container) addOwned(to map[int]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc != nil {
		to[c.record.PID] = true
	}
	for _, p := range c.execs {
		if p.proc != nil {
			to[p.record.PID] = true
		}
	}
}

func (c *container) status() protocol.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.record
	return protocol.Status{
		ID: r.ID, PodID: r.PodID, State: r.State, PID: cmp.Or(r.SandboxPID, r.PID),
		StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
		ExitCode: r.ExitCode, OOMKilled: r.OOMKilled, Lost: r.Lost, LogDone: r.LogDone, Orphan: r.Orphan,
		Setup: r.StatusSetup(),
	}
}

// change alters the record, saves it and notifies all watchers. If the record cannot be saved, the container keeps
// running.
func (c *container) change(fn func(r *record.Container)) {
	if c.alter(fn) {
		c.s.events.Publish(c.id)
	}
}

// alter changes and saves the record without notifying watchers. It returns false if the container was removed.
func (c *container) alter(fn func(r *record.Container)) bool {
	c.saving.Lock()
	defer c.saving.Unlock()
	c.mu.Lock()
	fn(&c.record)
	r := c.record
	removed := c.removed
	c.mu.Unlock()
	if removed {
		return false
	}
	if err := c.s.table.Save(&r); err != nil {
		c.log.Error("save the container's record", "error", err)
	}
	return true
}

// settle is change for facts that must be on disk before anybody learns of them, since the next keeper could not find
// them out again. It calls fn twice, so fn must be idempotent.
func (c *container) settle(fn func(r *record.Container)) {
	c.saving.Lock()
	c.mu.Lock()
	r := c.record
	removed := c.removed
	c.mu.Unlock()
	fn(&r)
	if !removed {
		if err := c.s.table.Save(&r); err != nil {
			c.log.Error("save the container's record", "error", err)
		}
	}
	c.mu.Lock()
	fn(&c.record)
	c.mu.Unlock()
	c.saving.Unlock()
	c.s.events.Publish(c.id)
}

// forget removes the record. Nothing saves it again.
func (c *container) forget() error {
	c.saving.Lock()
	defer c.saving.Unlock()
	c.mu.Lock()
	c.removed = true
	c.mu.Unlock()
	return c.s.table.Forget(c.id)
}

// watch waits for the end of the init process, and then ends the container.
func (c *container) watch(proc *pidfd.FD) {
	c.mu.Lock()
	paths := c.record.Cgroups
	c.mu.Unlock()
	c.s.oom.Begin(paths)
	exit, err := proc.Wait()
	if errors.Is(err, pidfd.ErrStopped) {
		return
	}
	c.ended(exit)
}

// ended records the end of the init process, and kills the container's other processes.
func (c *container) ended(exit pidfd.Exit) {
	at := time.Now()
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return
	}
	c.ending = true
	paths, orphan, shim := c.record.Cgroups, c.record.Orphan, c.record.Shim != nil
	proc := c.proc
	c.proc = nil
	c.mu.Unlock()
	if proc != nil {
		proc.Close()
	}
	oom := c.s.oom.End(paths)
	// In a PID namespace of its own the kernel has killed the rest; in a shared one it lives on.
	if err := cgroupdir.KillAll(paths); err != nil {
		c.log.Warn("kill what is left in the cgroup", "error", err)
	}
	c.endInSandbox(exit)
	oomSeen := shim && c.s.dir().OOMSeen(c.id)
	c.settle(func(r *record.Container) {
		r.State, r.FinishedAt, r.ExitCode = protocol.StateExited, at, exit.Code
		r.Lost = !exit.Known
		// The kernel may have killed a child, of which the init process has made an exit code of its own. One that has
		// ended well has done its work without that child.
		r.OOMKilled = (oom > 0 || oomSeen) && exit.Code != 0
	})
	c.log.Info("container ended", "code", exit.Code, "lost", !exit.Known, "oom_killed", oom > 0 || oomSeen)
	close(c.exited)
	_ = c.s.thaw(c, "")
	if orphan && !c.s.adoption.handbackOver() {
		return // its output may yet be handed back; otherwise endHandback drains it
	}
	c.drain()
}

// endInSandbox kills what a container with a proxy may still run after the end of that: all of it where the proxy was
// killed, or could not learn of the program's end, and what the program has left where others are in its PID namespace.
// The container's end is told afterwards: whoever starts its program again does not have it twice.
func (c *container) endInSandbox(exit pidfd.Exit) {
	r := c.Record()
	if !r.Proxied() {
		return
	}
	byItself := exit.Known && exit.Code != 128+int(unix.SIGKILL) && exit.Code != proxy.Unknown
	if byItself && !r.SharedPIDs {
		return
	}
	if maker, err := c.s.find(r.Sandbox); err == nil && r.Shim == nil {
		if m := maker.Record(); !pidfd.Alive(m.PID, m.Start) {
			return
		}
	}
	if err := c.signalInSandbox(context.Background(), unix.SIGKILL, true); err != nil {
		c.log.Warn("kill what is left in the sandbox", "error", err)
	}
}

// exitSaved says whether the end of the init process is recorded on disk. Until then, the next keeper can learn the
// exit code only from the pidfd in escrow.
func (c *container) exitSaved() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// drainWait is how long another process may hold the container's output open after the container's end.
const drainWait = 5 * time.Second

// drain waits until the container's whole output is in the log, and then releases the escrow. It is called after the
// end of the container has been saved.
func (c *container) drain() {
	c.mu.Lock()
	if c.draining || c.record.LogDone {
		c.mu.Unlock()
		return
	}
	c.draining = true
	var pumps []*logpump.Pump
	for _, p := range c.pumps {
		p.Hasten()
		pumps = append(pumps, p)
	}
	c.mu.Unlock()
	timeout := time.NewTimer(drainWait)
	defer timeout.Stop()
	for _, p := range pumps {
		select {
		case <-p.Done():
		case <-timeout.C:
			c.log.Warn("output is still held open by another process; what is there is taken")
			p.End()
			<-p.Done()
			timeout.Reset(0)
		}
		if !p.Ended() {
			// Stopped for an upgrade: the new program continues, or this one if the upgrade fails.
			c.mu.Lock()
			again := c.drainNext
			c.draining, c.drainNext = false, false
			c.mu.Unlock()
			if again {
				c.drain()
			}
			return
		}
	}
	c.mu.Lock()
	out, stdin := c.out, c.stdin
	c.stdin = -1
	c.pumps = map[logpump.Stream]*logpump.Pump{}
	c.mu.Unlock()
	if stdin >= 0 {
		unix.Close(stdin)
	}
	if out != nil {
		out.Finish()
	}
	c.s.escrow.release(c.id)
	c.change(func(r *record.Container) { r.LogDone = true })
	close(c.flushed)
}

// drainAgain is drain after an upgrade that has failed. A drain that has not noticed the upgrade yet does it again.
func (c *container) drainAgain() {
	c.mu.Lock()
	c.drainNext = c.draining
	c.mu.Unlock()
	c.drain()
}

// signalInSandbox has the OCI runtime, or the shim, send a signal to a container that has a proxy. A sandbox that does
// not answer to SIGKILL is ended, with all containers that are in it: none of them could be ended otherwise, nor the
// pod. The engine of shims does so itself.
func (c *container) signalInSandbox(ctx context.Context, sig unix.Signal, all bool) error {
	err := c.s.runtime.Signal(ctx, c, sig, all)
	rec := c.Record()
	if err == nil || sig != unix.SIGKILL || rec.Shim != nil {
		return err
	}
	maker, ferr := c.s.find(rec.Sandbox)
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	if r := maker.Record(); !pidfd.Alive(r.PID, r.Start) {
		return nil // the container ends with the sandbox
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	c.log.Error("the sandbox of a container does not answer: it is ended, with all of its containers", "error", err)
	return maker.signal(ctx, sig)
}

// signal sends a signal to the init process. A proxy passes signals on to its container, but for those that no process
// can catch.
func (c *container) signal(ctx context.Context, sig unix.Signal) error {
	c.mu.Lock()
	proc, proxied := c.proc, c.record.Proxied()
	c.mu.Unlock()
	if proxied && (sig == unix.SIGKILL || sig == unix.SIGSTOP) {
		return c.signalInSandbox(ctx, sig, false)
	}
	if proc == nil {
		return nil
	}
	if err := proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// closeStdin closes the write ends of the container's input, the keeper's own and those in escrow.
func (c *container) closeStdin() {
	c.s.escrow.releaseStdin(c.id, func() {
		c.mu.Lock()
		fd := c.stdin
		c.stdin, c.stdinClosed = -1, true
		c.mu.Unlock()
		if fd >= 0 {
			unix.Close(fd)
		}
	})
}
