package stage

// #include "stage.h"
import "C"

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/procfs"
)

// Starting is the keeper's side of a process before it runs its program: the init process of a container (Begin), or an
// exec in a running container (Join). The process sets itself up and waits. It ends if this keeper ends.
//
// Start, Ready and Run are called in this order, by one goroutine. Interrupt may be called at any time, by another.
type Starting struct {
	link  *link
	proc  *Process
	setup *Setup // nil: an exec
	wait  bool   // see Setup.Wait

	// spawned is the process that was started. After Target.Clone it is the one that this has created, once Start knows
	// it, and left is the first one, until it is reaped.
	spawned, left int
	clones        bool // spawned has yet to say which process it has created
	forks         bool // the container's process is a child of spawned
	// the container's process, a child of the one that was started or that itself; 0: not known yet
	pid      int
	waits    bool           // an exec that does not fork has yet to say that it is set up
	reaped   bool           // spawned, if pid is its child, has been reaped or left to the keeper
	disowned bool           // the caller reaps the container's process
	early    map[int]report // reports of processes that hear has not waited for yet

	mu          sync.Mutex
	interrupted bool
}

// Begin starts the init process of a container.
func (p *Program) Begin(s *Setup, proc *Process, stdio Stdio, console *os.File) (*Starting, error) {
	f := &Starting{proc: proc, setup: s, wait: s.Wait}
	return f, p.start(f, s.encode, s.forksLate(), &spawn{
		namespaces: int(p.mounts.Fd()), stdio: stdio, console: console, mark: s.Mark, node: s.Node,
		cgroups: s.Cgroups, cgroup: s.Cgroup, clone: s.Clone, flags: uintptr(s.born()),
	}, s.forksLate() || s.forksEarly())
}

// Join starts a process that joins a running container. If it has a terminal, all its streams are the terminal, and the
// master is sent to console.
func (p *Program) Join(t *Target, proc *Process, stdio Stdio, console *os.File) (*Starting, error) {
	f := &Starting{proc: proc, waits: !t.forks()}
	return f, p.start(f, t.encode, t.forks(), &spawn{
		namespaces: t.Pidfd, stdio: stdio, console: console, cgroups: t.Cgroups, cgroup: t.Cgroup,
		inner: t.Inner, clone: t.Clone,
	}, t.forks())
}

// start starts the process whose plan more completes. forks says that the container's process is a child of the process
// that is started, or of the one that this creates in the cgroup, and late that this child is forked as the last step
// of the set-up.
func (p *Program) start(f *Starting, more func(*encoder) error, late bool, s *spawn, forks bool) error {
	plan, err := f.proc.file(more, late)
	if err != nil {
		return err
	}
	defer plan.Close()
	ours, theirs, err := newLink()
	if err != nil {
		return err
	}
	defer theirs.Close()
	s.plan, s.keeper = plan, theirs
	if f.spawned, err = p.spawn(s); err != nil {
		ours.Close()
		return err
	}
	f.link = ours
	f.clones, f.forks = s.clone, forks
	f.found()
	return nil
}

// found notes the container's process if it is spawned.
func (f *Starting) found() {
	if !f.clones && !f.forks {
		f.pid = f.spawned
	}
}

// Spawned returns the process that was started, which the caller moves into its cgroup if Setup.Wait is set.
func (f *Starting) Spawned() int { return f.spawned }

// Start returns the PID of the container's process. An exec, and an init process that enters a PID namespace with other
// processes, is completely set up by then, and those processes can see it.
func (f *Starting) Start() (pid int, err error) {
	if f.wait {
		if err := f.release(); err != nil {
			return 0, err
		}
	}
	if f.clones {
		child, err := f.child()
		if err != nil {
			return 0, err
		}
		f.cloned(child)
	}
	if f.pid == 0 {
		child, err := f.child()
		if err != nil {
			return 0, err
		}
		f.pid = child
	}
	if f.waits {
		if err := f.Ready(); err != nil {
			return 0, err
		}
		f.waits = false
	}
	return f.pid, nil
}

// child returns the child of spawned, which spawned reports.
func (f *Starting) child() (pid int, err error) {
	r, err := f.hear(f.spawned)
	if err != nil {
		return 0, err
	}
	// The process has to be a child of this process, whatever PID is reported.
	if r.Step != C.STEP_PID || !isChild(int(r.Value)) {
		return 0, fmt.Errorf("the stage reports %d (%d) in place of its child's number", r.Step, r.Value)
	}
	return int(r.Value), nil
}

// cloned puts the process that spawned has created in the cgroup into its place.
func (f *Starting) cloned(child int) {
	f.clones, f.left, f.spawned = false, f.spawned, child
	f.found()
}

// ErrSilent is the error of a process that has ended without saying why.
var ErrSilent = errors.New("the container's process was killed while it was set up")

// ErrInterrupted is the error after Interrupt.
var ErrInterrupted = errors.New("the start was interrupted")

// Ready returns when a process that says so, which an init process does, is completely set up.
func (f *Starting) Ready() error {
	r, err := f.hear(f.pid)
	if err == nil && r.Step != C.STEP_READY {
		err = fmt.Errorf("the stage reports %d in place of being ready", r.Step)
	}
	return err
}

// Run lets the process execute its program, and returns when it has done so, or with the error that prevented it.
func (f *Starting) Run() error {
	if err := f.release(); err != nil {
		return err
	}
	switch r, err := f.hear(f.pid); {
	case errors.Is(err, ErrSilent):
		return nil
	case err != nil:
		return err
	default:
		return fmt.Errorf("the stage reports %d after it was to run the program", r.Step)
	}
}

// Interrupt makes Start, Ready and Run return ErrInterrupted, now and later. Their caller then kills the process.
func (f *Starting) Interrupt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.interrupted = true
	f.link.interrupt()
}

// Disown says that the caller reaps the container's process from now on.
func (f *Starting) Disown() { f.disowned = true }

// Close closes the keeper's end of the socket. A process that does not run its program yet ends. A process that has
// forked the container's process ends too, and Close reaps it. If a pause has frozen it at that moment, it is left to
// the keeper, which reaps orphans.
func (f *Starting) Close() {
	f.link.Close()
	f.reapLeft()
	if f.pid != 0 && f.pid != f.spawned && !f.reaped {
		if awaitEnd(f.spawned, time.Now().Add(forkedWait)) {
			reap(f.spawned)
		}
		f.reaped = true
	}
}

// forkedWait limits how long Close waits for a process that only has to exit.
const forkedWait = 200 * time.Millisecond

// reapLeft reaps a process that only had to create another one in the cgroup.
func (f *Starting) reapLeft() {
	if f.left != 0 && awaitEnd(f.left, time.Now().Add(forkedWait)) {
		reap(f.left)
	}
	f.left = 0
}

// killWait bounds how long Kill waits for processes to end.
const killWait = 2 * time.Second

// Kill kills the processes that have been started, and returns when they have ended. A process that does not end in
// time, because it is frozen or waits for a file system that does not answer, is left to the keeper, which reaps
// orphans.
func (f *Starting) Kill() {
	deadline := time.Now().Add(killWait)
	if f.clones {
		f.end(f.spawned, deadline)
		child := f.findChild()
		if child == 0 {
			f.reaped = true
			return
		}
		f.cloned(child)
		f.left = 0
	}
	if f.pid != f.spawned && !f.reaped {
		f.end(f.spawned, deadline)
		f.reaped = true
		if f.pid == 0 {
			f.pid = f.findChild()
		}
	}
	if f.pid == 0 {
		return
	}
	_ = unix.Kill(f.pid, unix.SIGKILL)
	if awaitEnd(f.pid, deadline) && !f.disowned {
		reap(f.pid)
	}
}

// end kills a process, and reaps it if it ends in time.
func (f *Starting) end(pid int, deadline time.Time) {
	_ = unix.Kill(pid, unix.SIGKILL)
	if awaitEnd(pid, deadline) {
		reap(pid)
	}
}

func awaitEnd(pid int, deadline time.Time) bool {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if hasEnded(pid) {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pause)
	}
}

// findChild looks for a child that spawned has forked and reported before it was killed; 0: there is none.
func (f *Starting) findChild() (pid int) {
	for {
		sender, r, err := f.spawned, report{}, error(nil)
		if early, ok := f.early[sender]; ok {
			r = early
			delete(f.early, sender)
		} else {
			sender, r, err = f.link.receiveNow()
		}
		switch {
		case err != nil:
			return 0
		case sender == f.spawned && r.Step == C.STEP_PID && isChild(int(r.Value)):
			return int(r.Value)
		case sender != f.spawned:
			f.keep(sender, r)
		}
	}
}

func (f *Starting) release() error {
	err := f.link.release()
	if errors.Is(err, unix.EPIPE) {
		speaker := f.pid
		if speaker == 0 {
			speaker = f.spawned
		}
		if _, why := f.hear(speaker); why != nil {
			return why
		}
	}
	return err
}

// lookAgain is how often hear checks that the process that it waits for still lives. The end of the socket says so at
// once, unless a container has taken a copy of the stage's descriptor.
const lookAgain = time.Second

// maxEarly limits the number of reports in Starting.early. One is expected: that of the child, before its parent has
// reported the child's PID.
const maxEarly = 8

// keep keeps the first report of a process that hear has not waited for yet.
func (f *Starting) keep(sender int, r report) {
	if _, ok := f.early[sender]; ok || len(f.early) >= maxEarly {
		return
	}
	if f.early == nil {
		f.early = map[int]report{}
	}
	f.early[sender] = r
}

// hear waits for a report of one process. The error says which step of the set-up has failed.
func (f *Starting) hear(speaker int) (report, error) {
	for last := false; ; {
		f.mu.Lock()
		interrupted := f.interrupted
		if !interrupted {
			_ = f.link.file.SetReadDeadline(time.Now().Add(lookAgain))
		}
		f.mu.Unlock()
		if interrupted {
			return report{}, ErrInterrupted
		}
		sender, r, err := speaker, report{}, error(nil)
		if early, ok := f.early[speaker]; ok {
			r = early
			delete(f.early, speaker)
		} else {
			sender, r, err = f.link.receive()
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded) && last:
			return report{}, ErrSilent
		case errors.Is(err, os.ErrDeadlineExceeded):
			last = hasEnded(speaker) // with one more look for what it said before
			continue
		case err != nil:
			return report{}, fmt.Errorf("receive a stage's report: %w", err)
		case sender != speaker:
			f.keep(sender, r)
			continue
		case r.Step == C.STEP_PID, r.Step == C.STEP_READY:
			return r, nil
		}
		errno := unix.Errno(r.Value)
		if f.setup != nil {
			if err := f.setup.failure(r.Step, r.Operation, errno); err != nil {
				return report{}, err
			}
		}
		return report{}, f.proc.failure(r.Step, r.Operation, errno)
	}
}

// hasEnded says whether a child of this process has ended. It is true for a process that is not a child.
func hasEnded(pid int) bool {
	ended, err := lookAt(pid)
	return err != nil || ended
}

func isChild(pid int) bool {
	if pid <= 0 {
		return false
	}
	_, err := lookAt(pid)
	return err == nil
}

// lookAt checks whether a child has ended, without reaping it.
func lookAt(pid int) (ended bool, err error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			// If no child has ended, the signal number in info stays 0.
			return (*[2]int32)(unsafe.Pointer(&info))[0] != 0, err
		}
	}
}

func reap(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
			return
		}
	}
}

// Abandoned is the exit code of a process whose keeper has gone before it let the program begin. A program may end
// with it too.
const Abandoned = C.STAGE_ABANDONED

// NewMark makes a file in which an init process says that its program is about to begin (Setup.Mark). The file outlives
// the keeper.
func NewMark(path string) (*os.File, error) {
	if err := os.WriteFile(path, []byte(C.STAGE_WAITS), 0o600); err != nil {
		return nil, err
	}
	// The file has one byte already, so overwriting it needs no free space.
	return os.OpenFile(path, os.O_WRONLY, 0)
}

// Begin writes to a mark that the program is about to begin. The keeper calls it for a stage that has no descriptor of
// the mark, right before it lets the stage continue.
func Begin(mark *os.File) error {
	_, err := mark.WriteAt([]byte(C.STAGE_BEGUN), 0)
	return err
}

// Begun says whether the program of the init process with this mark has begun, or is about to begin. A mark with other
// content is an error.
func Begun(path string) (bool, error) {
	b, err := os.ReadFile(path)
	if err == nil && string(b) != C.STAGE_BEGUN && string(b) != C.STAGE_WAITS {
		err = fmt.Errorf("the mark %s is spoilt: it says %q", path, b)
	}
	return err == nil && string(b) == C.STAGE_BEGUN, err
}

// Is says whether a process is still a stage, and does not run its program yet.
func Is(pid int) bool {
	return procfs.CommandLine(pid) == C.STAGE_NAME+"\x00"
}
