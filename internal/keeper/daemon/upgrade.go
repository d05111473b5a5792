package daemon

import (
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/keeper/gate"
	"berth/internal/keeper/handover"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
)

// An upgrade in place: nothing new begins, what has begun ends, connections close, pumps stop between two reads, and
// package handover executes the new program with the state and every descriptor. Children stay children.

// upgradeWaits are how long an upgrade waits for what may hang. It is given up after that.
type upgradeWaits struct {
	calls time.Duration // for the calls that are under way
	execs time.Duration // until those of execs that do not get into their container are put off
	pause time.Duration // for waiters and log pumps to pause
}

var usualWaits = upgradeWaits{calls: 30 * time.Second, execs: 10 * time.Second, pause: 10 * time.Second}

// disconnectWait is how long answers may take to reach their clients.
const disconnectWait = 2 * time.Second

// upgrade executes a new version of the program in this process, and continues with the state of the replaced program.
type upgrade struct {
	s *Server
}

// Upgrade executes the binary in place of this program. It returns only if that failed; the keeper then continues as
// before.
func (s *Server) Upgrade() error { return (&upgrade{s}).run() }

func (u *upgrade) run() error {
	s := u.s
	if err := u.checkBinary(); err != nil {
		s.log.Error("upgrade is refused", "error", err)
		return fmt.Errorf("upgrade: %w", err)
	}
	return u.replace()
}

// replace does it, after the check.
func (u *upgrade) replace() error {
	s := u.s
	if !s.gate.Close() {
		return gate.ErrUpgrading
	}
	s.log.Info("upgrade begins", "binary", s.cfg.Binary)
	err := u.execute()
	s.log.Error("upgrade failed; the keeper goes on as it is", "error", err)
	return fmt.Errorf("upgrade: %w", err)
}

// checkBinary makes sure that the program can run here and understands the state.
func (u *upgrade) checkBinary() error {
	defer u.s.orphans.Begin()()
	return handover.Check(u.s.cfg.Binary)
}

func (u *upgrade) execute() error {
	s := u.s
	if !u.quiet() {
		err := fmt.Errorf("%s does not end: %w", s.underWay(), errdefs.ErrUnavailable)
		s.gate.Open()
		return err
	}
	s.disconnect()

	saved, err := u.save()
	if err == nil {
		// Nothing is under way, and nothing begins: no process is started meanwhile.
		err = handover.Execute(s.cfg.Binary, saved, s.cfg.Hangup, s.limits.HandOn)
	}
	// Only a failure comes here.
	saved.CloseCopies()
	u.resume()
	s.gate.Open()
	if lerr := s.listen(); lerr != nil {
		s.fail(lerr)
	}
	return err
}

// quiet waits until nothing is under way. It is false if that takes too long.
func (u *upgrade) quiet() bool {
	s := u.s
	limit := time.NewTimer(s.upgradeWaits.calls)
	defer limit.Stop()
	execs := time.NewTimer(s.upgradeWaits.execs)
	defer execs.Stop()
	for {
		select {
		case <-s.gate.Idle():
			return true
		case <-limit.C:
			return false
		case <-execs.C:
			for _, c := range s.containers.all() {
				c.putOffExecs()
			}
		}
	}
}

// underWay names what holds an upgrade up.
func (s *Server) underWay() string {
	for _, c := range s.containers.all() {
		select {
		case <-c.started:
		default:
			return "the start of container " + c.id
		}
		c.mu.Lock()
		for id, p := range c.execs {
			if p.cancel != nil {
				c.mu.Unlock()
				return fmt.Sprintf("the start of exec %s in container %s", id, c.id)
			}
		}
		removals := c.removals
		c.mu.Unlock()
		if removals > 0 {
			return "the removal of container " + c.id
		}
	}
	return "a call"
}

// save stops waiters and log pumps and describes everything. After an error it is what there is of the state.
func (u *upgrade) save() (*handover.State, error) {
	s := u.s
	saved := &handover.State{
		Format: handover.Format, Generation: s.identity.generation, Upgrades: s.identity.upgrades + 1,
		StartedAt: s.identity.startedAt, HandbackOver: s.adoption.handbackOver(),
		Lock: int(s.sockets.lock.file.Fd()),
	}
	for l, to := range map[*net.UnixListener]*int{s.sockets.rpc: &saved.RPC, s.sockets.fds: &saved.FDs} {
		raw, err := l.SyscallConn()
		if err != nil {
			return saved, err
		}
		if err := raw.Control(func(fd uintptr) { *to = int(fd) }); err != nil {
			return saved, err
		}
	}
	if err := u.pause(); err != nil {
		return saved, err
	}
	for _, c := range s.containers.all() {
		sc, err := c.save()
		saved.Containers = append(saved.Containers, sc)
		if err != nil {
			return saved, fmt.Errorf("container %s: %w", c.id, err)
		}
	}
	if s.escrow.store != nil {
		saved.Stored = s.escrow.store.List()
	}
	return saved, nil
}

// pause stops waiters and log pumps. Each may be at a file system that does not answer, and the kernel would not let
// this program go before that one answers. So there is no upgrade then, and resume has all go on.
func (u *upgrade) pause() error {
	s := u.s
	limit := time.NewTimer(s.upgradeWaits.pause)
	defer limit.Stop()
	all := s.containers.all()
	pumps := make([][]<-chan struct{}, len(all))
	for i, c := range all {
		pumps[i] = c.pause()
	}
	for i, c := range all {
		if !allClosed(limit.C, pumps[i]) {
			return fmt.Errorf("the log of container %s takes no output: %w", c.id, errdefs.ErrUnavailable)
		}
	}
	clients := make([][]<-chan struct{}, len(all))
	for i, c := range all {
		clients[i] = c.pauseClients()
	}
	for i, c := range all {
		if !allClosed(limit.C, clients[i]) {
			return fmt.Errorf("the disk of a client of container %s takes no output: %w", c.id, errdefs.ErrUnavailable)
		}
	}
	// Who has just seen a process end writes that down first: it is reaped, and nobody could learn it again.
	if !allClosed(limit.C, []<-chan struct{}{s.watching.Idle()}) {
		return fmt.Errorf("the end of a container or exec is still being recorded: %w", errdefs.ErrUnavailable)
	}
	return nil
}

// allClosed waits until channels are closed. It is false if the limit is over before that.
func allClosed(limit <-chan time.Time, channels []<-chan struct{}) bool {
	for _, c := range channels {
		select {
		case <-c:
		case <-limit:
			return false
		}
	}
	return true
}

// stop stops the container's waiters and log pumps, however long that takes.
func (c *container) stop() {
	for _, paused := range c.pause() {
		<-paused
	}
	for _, paused := range c.pauseClients() {
		<-paused
	}
}

// pause stops the container's waiters, and its log pumps: these have stopped when the channels are closed.
func (c *container) pause() (paused []<-chan struct{}) {
	c.mu.Lock()
	var pumps []*logpump.Pump
	for _, p := range c.pumps {
		pumps = append(pumps, p)
	}
	procs := []*pidfd.FD{c.proc}
	for _, p := range c.execs {
		if p.timer != nil {
			p.timer.Stop()
		}
		procs = append(procs, p.proc)
	}
	c.mu.Unlock()
	for _, p := range procs {
		if p != nil {
			p.Stop()
		}
	}
	for _, p := range pumps {
		p.Pause()
		paused = append(paused, p.Done())
	}
	return paused
}

// pauseClients stops writing to attached clients. The pumps have stopped.
func (c *container) pauseClients() []<-chan struct{} {
	c.mu.Lock()
	out := c.out
	c.mu.Unlock()
	if out == nil {
		return nil
	}
	return out.Pause()
}

// save describes a container that is stopped.
func (c *container) save() (handover.Container, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sc := handover.Container{Record: c.record, Pidfd: -1, Stdin: c.stdin, StdinClosed: c.stdinClosed,
		Owners: maps.Clone(c.owners), Clients: maps.Clone(c.clients)}
	if c.proc != nil {
		if err := c.proc.Control(func(fd int) { sc.Pidfd = fd }); err != nil {
			return sc, err
		}
	}
	if c.out != nil {
		st, err := c.out.Save()
		sc.Log = &st
		if err != nil {
			return sc, err
		}
	}
	for stream, p := range c.pumps {
		st, err := p.Save()
		if err != nil {
			return sc, err
		}
		if sc.Pumps == nil {
			sc.Pumps = map[logpump.Stream]logpump.PumpState{}
		}
		sc.Pumps[stream] = st
	}
	for _, p := range c.execs {
		se := handover.Exec{Record: p.record, Pidfd: -1, EndedAt: p.endedAt}
		if !p.endedAt.IsZero() {
			se.EndedAgo = time.Since(p.endedAt)
		}
		if p.proc != nil {
			if err := p.proc.Control(func(fd int) { se.Pidfd = fd }); err != nil {
				return sc, err
			}
		}
		sc.Execs = append(sc.Execs, se)
	}
	return sc, nil
}

// resume starts waiters and log pumps again after a failed upgrade.
func (u *upgrade) resume() {
	s := u.s
	for _, c := range s.containers.all() {
		c.mu.Lock()
		proc, out := c.proc, c.out
		pumps := c.pumps
		var execs []*process
		for _, p := range c.execs {
			execs = append(execs, p)
		}
		rest := c.record.State == protocol.StateExited && !c.record.LogDone
		if c.record.Orphan && !s.adoption.handbackOver() {
			rest = false // its output may yet be handed back
		}
		c.mu.Unlock()
		if proc != nil {
			proc.Resume()
			s.watching.Go(func() { c.watch(proc) })
		}
		if out != nil {
			out.Start()
		}
		for _, p := range pumps {
			p.Start()
		}
		for _, p := range execs {
			c.mu.Lock()
			proc := p.proc
			p.arm()
			c.mu.Unlock()
			if proc != nil {
				proc.Resume()
				p.follow(proc)
			}
		}
		if rest {
			s.watching.Go(c.drainAgain)
		}
	}
}

// restore takes over the state of the replaced program.
func (u *upgrade) restore(saved *handover.State) (err error) {
	s := u.s
	s.identity = identity{saved.Generation, saved.Upgrades, saved.StartedAt}
	s.adoption.over = saved.HandbackOver
	records, lost, err := s.table.Load()
	if err != nil {
		s.log.Error("look for records that are spoilt, and for starts that are not undone", "error", err)
	}
	if !saved.HandbackOver {
		s.adoption.lost = lost
	}
	if s.sockets.lock, err = inheritLock(saved.Lock); err != nil {
		return err
	}
	if s.sockets.rpc, err = handover.Listener(saved.RPC); err != nil {
		return fmt.Errorf("restore %s: %w", protocol.RPCSocket, err)
	}
	if s.sockets.fds, err = handover.Listener(saved.FDs); err != nil {
		return fmt.Errorf("restore %s: %w", protocol.FDsSocket, err)
	}
	if s.escrow.store != nil {
		s.escrow.store.Restore(saved.Stored)
	}
	sessions := map[string]bool{}
	for i := range saved.Containers {
		c := u.restoreContainer(&saved.Containers[i])
		for _, ses := range c.clients {
			sessions[ses] = true
		}
	}
	for ses := range sessions {
		time.AfterFunc(2*returnWait, func() { s.abandon(ses) })
	}
	// No start is under way in an upgrade: the replaced program could not undo these, which are not in its state.
	for _, r := range records {
		if _, err := s.containers.get(r.ID); err != nil && r.State == protocol.StateStarting {
			s.adoption.abort(s.newContainer(*r))
		}
	}
	return nil
}

func (u *upgrade) restoreContainer(sc *handover.Container) *container {
	s := u.s
	c := s.newContainer(sc.Record)
	s.containers.add(c)
	close(c.started)
	s.thawInherited(c)
	c.stdin, c.stdinClosed = sc.Stdin, sc.StdinClosed
	for k, v := range sc.Owners {
		c.owners[k] = v
	}
	for k, v := range sc.Clients {
		c.clients[k] = v
	}
	if sc.Log != nil {
		c.out = logpump.Restore(*sc.Log, s.backlogs, c.log)
		c.out.Limit(sc.Record.LogLimits, false)
		for stream, st := range sc.Pumps {
			p, err := logpump.RestorePump(c.out, stream, st)
			if err != nil {
				c.log.Error("restore the pump of the container's output", "stream", stream, "error", err)
				continue
			}
			c.pumps[stream] = p
		}
		c.out.Start()
		for _, p := range c.pumps {
			p.Start()
		}
	}
	for _, se := range sc.Execs {
		u.restoreExec(c, &se)
	}
	if sc.Record.State == protocol.StateExited {
		close(c.exited)
		if sc.Record.LogDone {
			close(c.flushed)
		} else if s.adoption.handbackOver() || !sc.Record.Orphan {
			s.watching.Go(c.drain)
		}
		return c
	}
	if sc.Pidfd >= 0 {
		proc, err := pidfd.New(sc.Pidfd, sc.Record.PID, !sc.Record.Orphan)
		if err != nil {
			c.log.Error("restore process", "error", err)
			return c
		}
		proc.Resume()
		c.proc = proc
		s.watching.Go(func() { c.watch(proc) })
	}
	return c
}

func (u *upgrade) restoreExec(c *container, se *handover.Exec) {
	p := newExec(c, se.Record)
	if !se.EndedAt.IsZero() {
		p.endedAt = time.Now().Add(-se.EndedAgo) // the wall clock may have been set since
	}
	c.execs[se.Record.ExecID] = p
	var proc *pidfd.FD
	if !se.Record.Exited && se.Pidfd >= 0 {
		var err error
		if proc, err = pidfd.New(se.Pidfd, se.Record.PID, !se.Record.Orphan); err != nil {
			c.log.Error("restore exec", "exec_id", se.Record.ExecID, "error", err)
		}
	}
	if se.Record.Uncertain || p.undecided() && proc == nil {
		p.runErr = errUncertain
	}
	if !p.undecided() || proc == nil {
		close(p.started)
	}
	if proc == nil {
		close(p.done)
		return
	}
	p.proc = proc
	p.arm()
	p.follow(proc)
}
