package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/codec"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/proxy"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/stage"
)

// handbackWait is how long after its start a keeper waits for the holders of the escrow to hand the descriptors back. A
// container that has ended is not reported before that, because its pidfd may still have its exit code.
const handbackWait = 10 * time.Second

// errHandback is the error of a call that asks for what may yet be handed back. The client makes the call again:
// neither "there is none" nor a second start would be right before that is known.
var errHandback = fmt.Errorf("the keeper was restarted, and is still being handed back what runs: %w",
	errdefs.ErrUnavailable)

// adoption takes over the containers of a keeper that was killed. It uses the records on disk, and the descriptors that
// the service manager, berthd and an escrow process hand back.
type adoption struct {
	s    *Server
	bare bool // there was no table when this keeper started, so containers that are handed back may be new to it

	// aborted are the containers whose start this keeper has undone. A process that was killed may live for a moment.
	aborted map[string]record.Container

	mu sync.Mutex
	// undos are the removals of containers in aborted that have not succeeded yet.
	undos map[string]*undo
	lost  []string // containers whose records are spoilt, until they are handed back or ended
	over  bool     // the time to hand containers back is over
}

// inherit takes over the records that an earlier keeper has left in this directory.
func (a *adoption) inherit() error {
	s := a.s
	records, lost, err := s.table.Load()
	if err != nil {
		return err
	}
	a.lost = lost
	defer a.awaitUndos()
	for _, r := range records {
		c := s.newContainer(*r)
		if r.Prepared {
			// The decision is recorded before anything is done about it, because this keeper may be killed, too.
			if c.record.Prepared = false; !s.runtime.Begun(c) {
				c.record.State = protocol.StateStarting
			}
		}
		// Write both files of the record again: one of them may be damaged or missing.
		if err := s.table.Save(&c.record); err != nil {
			c.log.Error("save the container's record", "error", err)
		}
		if c.record.State == protocol.StateStarting {
			a.abort(c)
			continue
		}
		c.record.Orphan = true // before others have the container
		s.containers.add(c)
		close(c.started)
		s.thawInherited(c)
		if r.State == protocol.StateExited {
			close(c.exited)
			if r.LogDone {
				close(c.flushed)
			}
			continue
		}
		if pidfd.Alive(r.PID, r.Start) {
			a.watchOrphan(c, -1)
		}
	}
	if s.escrow.store != nil {
		for _, c := range s.containers.all() {
			if files := s.escrow.store.Handed(c.id); files != nil {
				a.adoptFiles(c, files)
				s.escrow.put(c) // what an earlier version did not store
			}
		}
		s.escrow.store.Discard()
	}
	return nil
}

// watchOrphan waits for a process that is not a child of this process, by its pidfd (which it takes over) or its PID.
func (a *adoption) watchOrphan(c *container, fd int) {
	s := a.s
	var proc *pidfd.FD
	var err error
	if fd >= 0 {
		proc, err = pidfd.New(fd, c.record.PID, false)
	} else if proc, err = pidfd.Open(c.record.PID, false); err == nil && !pidfd.Alive(c.record.PID, c.record.Start) {
		proc.Close() // the number has gone to another process in between
		return
	}
	if err != nil {
		c.log.Warn("watch the container's init process", "pid", c.record.PID, "error", err)
		return
	}
	c.mu.Lock()
	if c.proc != nil || c.ending || c.record.State != protocol.StateRunning {
		c.mu.Unlock()
		proc.Close()
		return
	}
	c.proc = proc
	c.mu.Unlock()
	s.watching.Go(func() { c.watch(proc) })
}

// adopt takes a container or exec back from a holder of the escrow. A keeper that has no room for the descriptors ends:
// the holder keeps all of them for the next one, and no output is lost. This keeper's limit must be lower than that of
// the keeper before.
func (a *adoption) adopt(js []byte, token string) error {
	err := a.take(js, token)
	if err == nil {
		err = protocol.Room(roomToServe)
	}
	if errors.Is(err, errdefs.ErrResourceExhausted) {
		a.s.fail(fmt.Errorf("take over what an earlier keeper has left: this one may open too few descriptors; raise its "+
			"limit (RLIMIT_NOFILE, LimitNOFILE of its unit): %w", err))
	}
	return err
}

// roomToServe is how many descriptors a keeper needs beside those that it takes over.
const roomToServe = 16

// take is adopt without the look for room.
func (a *adoption) take(js []byte, token string) error {
	s := a.s
	defer s.deliveries.Discard(token)
	if err := s.gate.Begin(); err != nil {
		return err
	}
	defer s.gate.End()
	files, err := s.deliveries.Take(token)
	if err != nil {
		return err
	}
	var k record.Escrowed
	if err := codec.Unmarshal(js, &k); err != nil {
		closeAll(files)
		return fmt.Errorf("record: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	switch {
	case k.Container != nil && record.CheckID("container", k.Container.ID) == nil:
		c := a.adoptRecord(k.Container)
		if c == nil {
			closeAll(files)
			return nil
		}
		a.adoptFiles(c, files)
		s.escrow.put(c)
		s.events.Publish(c.id)
		return nil
	case k.Exec != nil && record.CheckID("exec", k.Exec.ExecID) == nil:
		return a.adoptExec(k.Exec, files)
	}
	closeAll(files)
	return fmt.Errorf("record names neither a container nor an exec: %w", errdefs.ErrInvalidArgument)
}

// adoptRecord finds the container of a record that was in escrow. It returns nil if the container is gone. A container
// that is not in the table was removed, or its start was cut off and undone, by this or an earlier keeper. The holder
// of the escrow may not know that, if the earlier keeper was killed. The record is made again only if the table was
// lost, or if the container's program runs.
func (a *adoption) adoptRecord(r *record.Container) *container {
	s := a.s
	if c, err := s.containers.get(r.ID); err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.record.PID != r.PID || c.record.Start != r.Start {
			return nil // the record is that of another process, of an earlier container with this ID
		}
		return c
	}
	undone, ok := a.aborted[r.ID]
	undoneHere := ok && undone.PID == r.PID && undone.Start == r.Start
	lives := pidfd.Alive(r.PID, r.Start) && !stage.Is(r.PID)
	if undoneHere || !lives && !a.bare {
		s.escrow.releaseForgotten(r.ID, s.containers)
		return nil
	}
	c := s.newContainer(*r)
	c.record.Orphan, c.record.LogDone, c.record.Prepared = true, false, false
	close(c.started)
	if r.State == protocol.StateExited {
		close(c.exited)
	}
	if s.containers.add(c) != nil { // another call has just added it
		return a.adoptRecord(r)
	}
	c.change(func(*record.Container) {})
	return c
}

// adoptFiles takes over the descriptors of a container's output and input and its pidfd. It owns them. It keeps the
// descriptors that the container already has. It does not wait for the log, whose pumps begin once it is open.
func (a *adoption) adoptFiles(c *container, files map[protocol.Role]int) {
	s := a.s
	if fd, ok := files[protocol.RolePidfd]; ok {
		delete(files, protocol.RolePidfd)
		a.watchOrphan(c, fd)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer closeAll(files)
	if c.record.LogDone || c.removed {
		return
	}
	if c.out == nil {
		c.out = logpump.Inherit(c.record.LogPath, s.backlogs, c.log)
		c.out.Limit(c.record.LogLimits, false)
	}
	var adopted []*logpump.Pump
	for role, stream := range map[protocol.Role]logpump.Stream{
		protocol.RoleStdout: logpump.Stdout, protocol.RoleStderr: logpump.Stderr, protocol.RoleConsole: logpump.Stdout,
	} {
		fd, ok := files[role]
		if !ok || c.pumps[stream] != nil {
			continue
		}
		delete(files, role)
		held := map[logpump.Role]int{}
		for r, role := range heldRoles[stream] {
			if fd, ok := files[role]; ok {
				held[r] = fd
				delete(files, role)
			}
		}
		p, err := logpump.AdoptPump(c.out, stream, fd, held)
		if err != nil {
			c.log.Error("take over the pump of the container's output", "stream", stream, "error", err)
			continue
		}
		c.pumps[stream] = p
		adopted = append(adopted, p)
	}
	// Not here: the log may be on a disk that does not answer, and others wait for the container's lock.
	out, recovered := c.out, make(chan struct{})
	for _, p := range adopted {
		p.StartAfter(recovered)
	}
	go func() {
		defer close(recovered)
		out.Recover(s.sockets.earlierEnded(), adopted...)
	}()
	if fd, ok := files[protocol.RoleStdin]; ok && c.stdin < 0 && !c.stdinClosed {
		delete(files, protocol.RoleStdin)
		c.stdin = fd
	}
}

func (a *adoption) adoptExec(r *record.Exec, files map[protocol.Role]int) error {
	s := a.s
	fd, ok := files[protocol.RolePidfd]
	delete(files, protocol.RolePidfd)
	closeAll(files)
	c, err := s.containers.get(r.ContainerID)
	if err != nil || !ok {
		if ok {
			unix.Close(fd)
		}
		s.escrow.release(execKey(r.ContainerID, r.ExecID))
		return err
	}
	proc, err := pidfd.New(fd, r.PID, false)
	if err != nil {
		return err
	}
	p := newExec(c, *r)
	// It is not decided yet whether the program has begun. If this keeper is killed, the next one has to find out again.
	p.record.Orphan, p.record.Prepared = true, r.Prepared && !r.Began
	p.proc = proc
	c.mu.Lock()
	if _, ok := c.execs[r.ExecID]; ok {
		c.mu.Unlock()
		return proc.Close()
	}
	c.execs[r.ExecID] = p
	p.arm()
	c.mu.Unlock()
	s.escrow.putExec(p)
	if !p.undecided() {
		close(p.started)
	}
	p.follow(proc)
	return nil
}

// undecided says whether it is not known yet if the program of an exec has begun, because its keeper ended at that
// time.
func (p *process) undecided() bool { return p.record.Orphan && p.record.Prepared && !p.record.Exited }

// follow waits for the end of an exec that another keeper, or this one before an upgrade, has started.
func (p *process) follow(proc *pidfd.FD) {
	p.c.s.watching.Go(func() {
		if p.undecided() {
			p.resolve(proc)
		} else {
			p.watch(proc)
		}
	})
}

// resolve finds out whether the program of an exec has begun, if the exec's keeper ended at that time. The program has
// begun if the process is not a stage any more, nor a proxy that waits. One of these that still waited when its keeper
// ended, ends by itself. After an upgrade during this call, the new program resolves the exec again.
func (p *process) resolve(proc *pidfd.FD) {
	c := p.c
	deadline := time.Now().Add(runtime.StageWait)
	waits := func() bool { return stage.Is(p.record.PID) || proxy.Waits(p.record.PID) }
	for waits() && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	lost := waits()
	if lost { // something keeps it from seeing that its keeper has gone
		_ = proc.Signal(unix.SIGKILL)
	} else if pidfd.Alive(p.record.PID, p.record.Start) {
		c.mu.Lock()
		p.record.Prepared = false
		c.mu.Unlock()
		c.s.escrow.putExec(p)
		close(p.started)
		c.s.watching.Go(func() { p.watch(proc) })
		return
	}
	exit, err := proc.Wait()
	if errors.Is(err, pidfd.ErrStopped) {
		return
	}
	if lost || exit.Code == stage.Abandoned {
		c.mu.Lock()
		p.record.Uncertain = true
		c.mu.Unlock()
		p.runErr = errUncertain
	}
	p.ended(exit)
	close(p.started)
}

// arm sets the timer of an exec that has a deadline.
func (p *process) arm() {
	if left, limited := p.record.Left(); limited {
		p.timer = time.AfterFunc(left, func() { p.kill(true) })
	}
}

// handbackOver says whether the time in which descriptors are handed back is over.
func (a *adoption) handbackOver() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.over
}

// mayReturn says whether a container that is not in the table may yet be handed back, or is being ended since it was
// not: its record is spoilt.
func (a *adoption) mayReturn(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Contains(a.lost, id)
}

// forgetLost is called when a container whose record is spoilt does not return any more.
func (a *adoption) forgetLost(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost = slices.DeleteFunc(a.lost, func(lost string) bool { return lost == id })
}

// endLost kills the processes of a container whose record is damaged and which no holder of the escrow has handed back.
// No client could learn of such a container.
func (a *adoption) endLost(id string) {
	s := a.s
	defer a.forgetLost(id)
	if _, err := s.containers.get(id); err == nil {
		return
	}
	s.log.Error("a container whose record is lost is ended", "container_id", id)
	ctx, cancel := context.WithTimeout(context.Background(), removeWait)
	defer cancel()
	if err := s.deleteUnknown(ctx, id); err != nil {
		s.log.Error("end a container whose record is lost", "container_id", id, "error", err)
	}
}

// endHandback ends the time in which descriptors are handed back. Descriptors that nobody held in escrow are lost.
func (a *adoption) endHandback() {
	s := a.s
	if s.gate.Begin() != nil {
		time.AfterFunc(returnWait, a.endHandback) // the next program does it, unless the upgrade fails
		return
	}
	defer s.gate.End()
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return
	}
	a.over = true
	lost := slices.Clone(a.lost)
	a.mu.Unlock()
	for _, id := range lost {
		s.watching.Go(func() { a.endLost(id) })
	}
	for _, c := range s.containers.all() {
		c.mu.Lock()
		gone := c.record.State == protocol.StateRunning && c.proc == nil && c.record.Orphan && !c.ending
		mute := c.record.Orphan && c.record.State == protocol.StateRunning && len(c.pumps) == 0
		rest := c.exitSaved() && !c.record.LogDone
		c.mu.Unlock()
		if mute {
			c.log.Warn("this container's output was not handed back; it is lost from the keeper's death on")
		}
		switch {
		case gone:
			s.watching.Go(func() { c.ended(pidfd.Exit{Code: 255}) })
		case rest: // else ended does it, once the end is saved
			s.watching.Go(c.drain)
		}
	}
}

// escrowProcessLives says whether an escrow process of this directory has not handed everything back: it ends when it
// has.
func (a *adoption) escrowProcessLives() bool {
	s := a.s
	f, err := os.OpenFile(filepath.Join(s.cfg.Dir, protocol.EscrowFile), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
}

// endHandbackAfterEscrowProcess ends the handback when the escrow processes have ended, unless that takes longer than
// handbackWait.
func (a *adoption) endHandbackAfterEscrowProcess() {
	for a.escrowProcessLives() {
		if a.handbackOver() {
			return
		}
		time.Sleep(escrowProcessPoll)
	}
	a.endHandback()
}
