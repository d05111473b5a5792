package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/fdstore"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/session"
)

// noRoom is the error of a descriptor that cannot be put into escrow because this process can open no more descriptors.
type noRoom struct{ err error }

func (e noRoom) Error() string { return "put into escrow: duplicate a descriptor: " + e.err.Error() }

func (e noRoom) Unwrap() error { return errdefs.ErrResourceExhausted }

// addDuplicate puts a duplicate of a descriptor into a packet.
func addDuplicate(p *protocol.Packet, r protocol.Role, fd int) error {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return noRoom{err}
	}
	p.Roles, p.FDs = append(p.Roles, r), append(p.FDs, n)
	return nil
}

// heldRoles are the roles in escrow of the descriptors that a stream's pump holds. A terminal has those of standard
// output.
var heldRoles = map[logpump.Stream]map[logpump.Role]protocol.Role{
	logpump.Stdout: {logpump.Memory: protocol.RoleStdoutMemory, logpump.Relay: protocol.RoleStdoutRelay},
	logpump.Stderr: {logpump.Memory: protocol.RoleStderrMemory, logpump.Relay: protocol.RoleStderrRelay},
}

// escrowPacket returns the packet that puts the container into escrow, with duplicates of its descriptors; nil: nothing
// of it would be lost with this process. The error is noRoom where one descriptor cannot be duplicated: a packet
// without it would let output be lost without a word.
func (c *container) escrowPacket() (_ *protocol.Packet, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.record
	if c.prepared != nil {
		r = c.prepared
	}
	if c.removed || r.LogDone || r.State == protocol.StateStarting {
		return nil, nil
	}
	p := &protocol.Packet{Kind: protocol.Keep, ID: c.id, Record: record.JSON(record.Escrowed{Container: r})}
	defer func() {
		if err != nil {
			p.CloseFiles()
		}
	}()
	add := func(r protocol.Role, fd int) {
		if err == nil {
			err = addDuplicate(p, r, fd)
		}
	}
	if c.proc != nil {
		_ = c.proc.Control(func(fd int) { add(protocol.RolePidfd, fd) })
	}
	for s, pump := range c.pumps {
		role := protocol.RoleStdout
		switch {
		case c.record.Terminal:
			role = protocol.RoleConsole
		case s == logpump.Stderr:
			role = protocol.RoleStderr
		}
		if err := pump.Control(func(fd int) { add(role, fd) }); err != nil {
			continue // it has ended
		}
		_ = pump.Held(func(r logpump.Role, fd int) { add(heldRoles[s][r], fd) })
	}
	if c.stdin >= 0 {
		add(protocol.RoleStdin, c.stdin)
	}
	return p, err
}

// escrowPacket returns the packet that puts the exec into escrow, with a duplicate of its pidfd; nil: it has ended.
func (p *process) escrowPacket() (_ *protocol.Packet, err error) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.proc == nil {
		return nil, nil
	}
	k := &protocol.Packet{
		Kind: protocol.Keep, ID: execKey(p.record.ContainerID, p.record.ExecID),
		Record: record.JSON(record.Escrowed{Exec: &p.record}),
	}
	_ = p.proc.Control(func(fd int) { err = addDuplicate(k, protocol.RolePidfd, fd) })
	return k, err
}

// execKey names an exec in escrow; no container's ID has a slash.
func execKey(container, exec string) string { return container + "/" + exec }

// pending has a channel for each holder of a packet that is on its way into escrow. The channel gets nil
// when the kernel has the packet for that holder.
type pending []<-chan error

// escrowWait limits how long a slow holder can delay a start. A holder that takes nothing is disconnected before that
// (see protocol.Conn.Send), and counts as gone.
const escrowWait = 3 * protocol.SendTimeout

// wait returns when the kernel has the packets for all holders: from then on the descriptors outlive this process. If
// all holders have gone, as when berthd is killed, wait does not wait, and the next holder that connects gets
// everything. The error says that there are holders, and that none of them has taken the packet, or that there can be
// no such packet.
func (sent pending) wait(log *slog.Logger, wait time.Duration) error {
	if len(sent) == 0 {
		return nil
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	var gone, never error
	var full noRoom
	taken, late := 0, 0
	over := limit.C
	for _, one := range sent {
		var err error
		select {
		case err = <-one:
		default:
			select {
			case err = <-one:
			case <-over:
				over = closed
				late++
				continue
			}
		}
		switch {
		case err == nil:
			taken++
		case errors.As(err, &full):
			never = full
		case errors.Is(err, protocol.ErrPacket):
			never = fmt.Errorf("put into escrow: %w: %w", err, errdefs.ErrInvalidArgument)
		default:
			gone = err
		}
	}
	switch {
	case never != nil:
		return never
	case taken > 0 && late == 0 && gone == nil:
	case taken > 0 || late == 0:
		log.Warn("not all holders of the escrow have taken it", "taken", taken, "late", late, "error", gone)
	default:
		return fmt.Errorf("nobody has taken it into escrow within %v: %w", wait, errdefs.ErrUnavailable)
	}
	return nil
}

// closed is the channel of a timer that has run out.
var closed = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// escrow gives descriptors that must outlive this process to others: to the sessions that ask for them, and to the
// service manager.
type escrow struct {
	sessions *session.Table
	store    *fdstore.Store // nil: there is no service manager
	// putting is held for reading while a container is put into escrow: see releaseForgotten and releaseStdin.
	putting sync.RWMutex
}

// holders are the sessions that hold things in escrow: berthd's, and that of an escrow process.
func (e *escrow) holders() []*session.Session {
	return slices.DeleteFunc(e.sessions.All(), func(ses *session.Session) bool { return !ses.Escrow })
}

// put puts the descriptors of a container into escrow with all holders.
func (e *escrow) put(c *container) (sent pending) {
	e.putting.RLock()
	defer e.putting.RUnlock()
	for _, ses := range e.holders() {
		sent = sent.push(ses, c.escrowPacket)
	}
	if e.store != nil {
		switch p, err := c.escrowPacket(); {
		case err != nil:
			sent = append(sent, failed(err))
		case p != nil:
			e.store.Keep(p)
			p.CloseFiles()
		}
	}
	return sent
}

// push sends the packet that the function makes, if it makes one, to a session.
func (sent pending) push(ses *session.Session, packet func() (*protocol.Packet, error)) pending {
	switch p, err := packet(); {
	case err != nil:
		return append(sent, failed(err))
	case p != nil:
		return append(sent, ses.Push(p))
	}
	return sent
}

// failed returns the channel of a packet that could not be made.
func failed(err error) <-chan error {
	c := make(chan error, 1)
	c <- err
	return c
}

// putExec puts an exec into escrow. A holder drops it when its exit status has been asked for; else it is released when
// this keeper forgets it.
func (e *escrow) putExec(p *process) (sent pending) {
	for _, ses := range e.holders() {
		sent = sent.push(ses, p.escrowPacket)
	}
	return sent
}

// putAll gives the descriptors of the whole table to a session that has just connected, one container or exec after
// another: all at once would double the number of this process's descriptors.
func (e *escrow) putAll(ses *session.Session, table *containers) {
	give := func(log *slog.Logger, packet func() (*protocol.Packet, error)) {
		e.putting.RLock()
		sent := pending(nil).push(ses, packet)
		e.putting.RUnlock()
		if err := sent.wait(log, escrowWait); err != nil {
			log.Error("send descriptors to a holder of the escrow", "error", err)
		}
	}
	for _, c := range table.all() {
		give(c.log, c.escrowPacket)
		c.mu.Lock()
		var execs []*process
		for _, p := range c.execs {
			execs = append(execs, p)
		}
		c.mu.Unlock()
		for _, p := range execs {
			give(c.log, p.escrowPacket)
		}
	}
	ses.Push(&protocol.Packet{Kind: protocol.Synced})
}

// release has all holders close some descriptors of a container or exec, or all of them.
func (e *escrow) release(id string, roles ...protocol.Role) {
	for _, ses := range e.holders() {
		ses.Push(&protocol.Packet{Kind: protocol.Release, ID: id, Roles: roles})
	}
	if e.store != nil {
		e.store.Release(id, roles...)
	}
}

// releaseStdin has all holders close the write ends of a container's input, once closed has closed the keeper's own. No
// packet that has a duplicate of it can follow: what a holder got then would keep the input open until the container
// ends.
func (e *escrow) releaseStdin(id string, closed func()) {
	e.putting.Lock()
	defer e.putting.Unlock()
	closed()
	e.release(id, protocol.RoleStdin)
}

// releaseForgotten has all holders drop what they hold of a container that is not in the table. A start of the same
// container, which a client makes again after a keeper was killed, adds it to the table before it puts it into escrow:
// what this start puts there is not dropped.
func (e *escrow) releaseForgotten(id string, table *containers) {
	e.putting.Lock()
	defer e.putting.Unlock()
	if _, err := table.get(id); err != nil {
		e.release(id)
	}
}
