package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/gate"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
)

// An upgrade in place: nothing new begins, what has begun ends, connections close, pumps stop between two reads, the
// state goes into a memfd, and the new program is executed with every descriptor open. Children stay children.

const (
	stateEnv = "BERTH_KEEPER_STATE" // the memfd's number
	// StateFormat is the version of the saved state; a program that prints another one is not executed.
	StateFormat    = 1
	upgradeWait    = 30 * time.Second // for what is under way
	disconnectWait = 2 * time.Second  // for the answers to reach their clients
	checkProgWait  = time.Minute      // for the new program to say what state it understands
)

type savedServer struct {
	Format       int                 `json:"format"`
	Generation   string              `json:"generation"`
	Upgrades     uint32              `json:"image"`
	StartedAt    time.Time           `json:"startedAt"`
	HandbackOver bool                `json:"settled"`
	Lock         int                 `json:"lock"`
	RPC          int                 `json:"rpc"`
	FDs          int                 `json:"fds"`
	Containers   []savedContainer    `json:"containers"`
	Stored       map[string][]string `json:"stored,omitempty"`
}

type savedContainer struct {
	Record  record.Container                     `json:"row"`
	Pidfd   int                                  `json:"pidfd"`
	Stdin   int                                  `json:"stdin"`
	Log     *logpump.LogState                    `json:"log,omitempty"`
	Pumps   map[logpump.Stream]logpump.PumpState `json:"pumps,omitempty"`
	Execs   []savedExec                          `json:"execs,omitempty"`
	Owners  map[string]string                    `json:"owners,omitempty"`
	Clients map[string]string                    `json:"clients,omitempty"`
}

type savedExec struct {
	Record record.Exec `json:"row"`
	Pidfd  int         `json:"pidfd"`
	// EndedAgo is how long it has been over; 0: it is not, or an earlier version of the keeper has saved this.
	EndedAgo time.Duration `json:"endedAgo,omitempty"`
	// EndedAt is for earlier versions.
	EndedAt time.Time `json:"endedAt,omitzero"`
}

// upgrade replaces the program of this process, and goes on where the replaced program stopped.
type upgrade struct {
	s *Server
}

// Upgrade executes the binary in place of this program. It returns only if that failed; everything goes on then.
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
	s := u.s
	ctx, cancel := context.WithTimeout(context.Background(), checkProgWait)
	defer cancel()
	end := s.orphans.Begin()
	defer end()
	out, err := exec.CommandContext(ctx, s.cfg.Binary, "--state-format").Output()
	if err != nil {
		return fmt.Errorf("%s: %w", s.cfg.Binary, err)
	}
	if got := strings.TrimSpace(string(out)); got != strconv.Itoa(StateFormat) {
		return fmt.Errorf("%s has state format %s, not %d", s.cfg.Binary, got, StateFormat)
	}
	return nil
}

func (u *upgrade) execute() error {
	s := u.s
	quiet := make(chan struct{})
	go func() {
		s.gate.Wait()
		close(quiet)
	}()
	select {
	case <-quiet:
	case <-time.After(upgradeWait):
		s.gate.Open()
		return errors.New("a start that is under way does not end")
	}
	s.disconnect()

	saved, fds, err := u.save()
	if err == nil {
		err = u.become(saved, fds)
	}
	// Only a failure comes here.
	u.resume()
	s.gate.Open()
	if lerr := s.listen(); lerr != nil {
		s.fail(lerr)
	}
	return err
}

// save stops waiters and log pumps and describes everything, with the descriptors that must stay open.
func (u *upgrade) save() (*savedServer, []int, error) {
	s := u.s
	saved := &savedServer{
		Format: StateFormat, Generation: s.identity.generation, Upgrades: s.identity.upgrades + 1,
		StartedAt: s.identity.startedAt, HandbackOver: s.adoption.handbackOver(),
		Lock: int(s.sockets.lock.Fd()),
	}
	fds := []int{saved.Lock}
	for l, to := range map[*net.UnixListener]*int{s.sockets.rpc: &saved.RPC, s.sockets.fds: &saved.FDs} {
		raw, err := l.SyscallConn()
		if err != nil {
			return nil, nil, err
		}
		if err := raw.Control(func(fd uintptr) { *to = int(fd) }); err != nil {
			return nil, nil, err
		}
		fds = append(fds, *to)
	}
	for _, c := range s.containers.all() {
		c.stop()
	}
	// Who has just seen a process end writes that down first: it is reaped, and nobody could learn it again.
	s.watching.Wait()
	for _, c := range s.containers.all() {
		sc, more, err := c.save()
		if err != nil {
			return nil, nil, fmt.Errorf("container %s: %w", c.id, err)
		}
		saved.Containers = append(saved.Containers, sc)
		fds = append(fds, more...)
	}
	if s.escrow.store != nil {
		saved.Stored = s.escrow.store.List()
	}
	return saved, fds, nil
}

// stop stops the container's waiters and log pumps.
func (c *container) stop() {
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
	out := c.out
	c.mu.Unlock()
	for _, p := range procs {
		if p != nil {
			p.Stop()
		}
	}
	for _, p := range pumps {
		p.Stop()
	}
	if out != nil {
		out.Stop()
	}
}

func (c *container) save() (savedContainer, []int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sc := savedContainer{Record: c.record, Pidfd: -1, Stdin: c.stdin, Owners: c.owners, Clients: c.clients}
	var fds []int
	keep := func(fd int) {
		if fd >= 0 {
			fds = append(fds, fd)
		}
	}
	keep(c.stdin)
	if c.proc != nil {
		if err := c.proc.Control(func(fd int) { sc.Pidfd = fd }); err != nil {
			return sc, nil, err
		}
		keep(sc.Pidfd)
	}
	if c.out != nil {
		st, err := c.out.Save()
		if err != nil {
			return sc, nil, err
		}
		sc.Log = &st
		keep(st.FD)
		for _, queues := range st.Clients {
			for _, q := range queues {
				keep(q.FD)
				keep(q.Memory)
				keep(q.Spill)
			}
		}
	}
	for stream, p := range c.pumps {
		st, err := p.Save()
		if err != nil {
			return sc, nil, err
		}
		if sc.Pumps == nil {
			sc.Pumps = map[logpump.Stream]logpump.PumpState{}
		}
		sc.Pumps[stream] = st
		keep(st.FD)
		for _, fd := range st.Held {
			keep(fd)
		}
	}
	for _, p := range c.execs {
		se := savedExec{Record: p.record, Pidfd: -1, EndedAt: p.endedAt}
		if !p.endedAt.IsZero() {
			se.EndedAgo = time.Since(p.endedAt)
		}
		if p.proc != nil {
			if err := p.proc.Control(func(fd int) { se.Pidfd = fd }); err != nil {
				return sc, nil, err
			}
			keep(se.Pidfd)
		}
		sc.Execs = append(sc.Execs, se)
	}
	return sc, fds, nil
}

// become executes the new program.
func (u *upgrade) become(saved *savedServer, fds []int) error {
	s := u.s
	b, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	mem, err := unix.MemfdCreate("berth-keeper-state", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(mem)
	for done := 0; done < len(b); {
		n, err := unix.Write(mem, b[done:])
		if err != nil {
			return fmt.Errorf("write state: %w", err)
		}
		done += n
	}
	fds = append(fds, mem)
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, stateEnv+"=") {
			env = append(env, e)
		}
	}
	env = append(env, stateEnv+"="+strconv.Itoa(mem))
	// No process is started between here and the execve: nothing is under way, and nothing begins.
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep descriptor %d: %w", fd, err)
		}
	}
	// Caught, it would have its default action in the new program until that catches it, and end the keeper.
	if s.cfg.Hangup != nil {
		signal.Ignore(unix.SIGHUP)
		defer signal.Notify(s.cfg.Hangup, unix.SIGHUP)
	}
	if err := s.limits.HandOn(); err != nil {
		return err
	}
	err = syscall.Exec(s.cfg.Binary, os.Args, env)
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fmt.Errorf("execute %s: %w", s.cfg.Binary, err)
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
		state := c.record.State
		c.mu.Unlock()
		if proc != nil {
			proc.Resume()
			s.watching.Go(func() { c.watch(proc) })
		}
		for _, p := range pumps {
			p.Start()
		}
		if out != nil {
			out.Start()
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
		if state == protocol.StateExited && !c.status().LogDone {
			s.watching.Go(c.drain)
		}
	}
}

// savedState is what the program that this one replaced has left; nil if there was none.
func savedState() (*savedServer, error) {
	v, ok := os.LookupEnv(stateEnv)
	if !ok {
		return nil, nil
	}
	os.Unsetenv(stateEnv)
	fd, err := strconv.Atoi(v)
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w", stateEnv, v, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("saved state: %w", err)
	}
	b := make([]byte, st.Size)
	if _, err := unix.Pread(fd, b, 0); err != nil {
		return nil, fmt.Errorf("saved state: %w", err)
	}
	saved := &savedServer{}
	if err := json.Unmarshal(b, saved); err != nil {
		return nil, fmt.Errorf("saved state: %w", err)
	}
	if saved.Format != StateFormat {
		return nil, fmt.Errorf("saved state has format %d, not %d", saved.Format, StateFormat)
	}
	return saved, nil
}

// listener takes a listening socket over.
func listener(fd int) (*net.UnixListener, error) {
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	return u, nil
}

// restore goes on where the replaced program stopped.
func (u *upgrade) restore(saved *savedServer) (err error) {
	s := u.s
	s.identity = identity{saved.Generation, saved.Upgrades, saved.StartedAt}
	s.adoption.over = saved.HandbackOver
	unix.CloseOnExec(saved.Lock)
	s.sockets.lock = os.NewFile(uintptr(saved.Lock), protocol.LockFile)
	if s.sockets.rpc, err = listener(saved.RPC); err != nil {
		return fmt.Errorf("restore %s: %w", protocol.RPCSocket, err)
	}
	if s.sockets.fds, err = listener(saved.FDs); err != nil {
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
	return nil
}

func (u *upgrade) restoreContainer(sc *savedContainer) *container {
	s := u.s
	c := s.newContainer(sc.Record)
	s.containers.add(c)
	close(c.started)
	s.thawInherited(c)
	c.stdin = sc.Stdin
	if c.stdin >= 0 {
		unix.CloseOnExec(c.stdin)
	}
	for k, v := range sc.Owners {
		c.owners[k] = v
	}
	for k, v := range sc.Clients {
		c.clients[k] = v
	}
	if sc.Log != nil {
		closeOnExec(sc.Log)
		c.out = logpump.Restore(*sc.Log, s.backlogs, c.log)
		for stream, st := range sc.Pumps {
			if st.FD >= 0 {
				unix.CloseOnExec(st.FD)
			}
			for _, fd := range st.Held {
				unix.CloseOnExec(fd)
			}
			p, err := logpump.RestorePump(c.out, stream, st)
			if err != nil {
				c.log.Error("restore output", "stream", stream, "error", err)
				continue
			}
			c.pumps[stream] = p
			p.Start()
		}
		c.out.Start()
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
		unix.CloseOnExec(sc.Pidfd)
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

func (u *upgrade) restoreExec(c *container, se *savedExec) {
	p := newExec(c, se.Record)
	if !se.EndedAt.IsZero() {
		p.endedAt = time.Now().Add(-se.EndedAgo) // the wall clock may have been set since
	}
	c.execs[se.Record.ExecID] = p
	var proc *pidfd.FD
	if !se.Record.Exited && se.Pidfd >= 0 {
		unix.CloseOnExec(se.Pidfd)
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

// closeOnExec marks what a saved log brought along.
func closeOnExec(l *logpump.LogState) {
	mark := func(fd int) {
		if fd >= 0 {
			unix.CloseOnExec(fd)
		}
	}
	mark(l.FD)
	for _, queues := range l.Clients {
		for _, q := range queues {
			mark(q.FD)
			mark(q.Memory)
			mark(q.Spill)
		}
	}
}
