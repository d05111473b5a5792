package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
)

const (
	// lockWait is how long a keeper that is being killed may take to release the lock.
	lockWait = 2 * time.Second
	// lockHung is how long another keeper waits before it takes the lock from one that was killed and still has it.
	lockHung = 500 * time.Millisecond
)

// lock is the lock that only one keeper of a directory has.
//
// The file of the lock names the keeper that has it, and the earlier keepers that were killed and of which the kernel
// still has threads: those in system calls that no signal ends, such as a write to a disk that does not answer. Such a
// keeper keeps its lock, since its threads share their descriptors. Another keeper takes the lock from it by a new file
// in the place of that of the lock. Whoever tries to get the lock, in whatever way, has the turn meanwhile.
type lock struct {
	file *os.File
	// before are the earlier keepers that the file names, and ended is closed when they have no threads any more; nil:
	// there are none.
	before []processID
	ended  <-chan struct{}
}

// processID names a process for good.
type processID struct {
	pid   int
	start uint64 // see pidfd.StartTime
}

// there says whether the process still exists, be it as a zombie.
func (p processID) there() bool {
	start, err := pidfd.StartTime(p.pid)
	return err == nil && start == p.start
}

// acquire takes the lock of a keeper's directory.
func acquire(dir string, log *slog.Logger) (*lock, error) {
	begin := time.Now()
	for ; ; time.Sleep(10 * time.Millisecond) {
		l, err := tryLock(dir, time.Since(begin) >= lockHung, log)
		if l != nil || err != nil && err != unix.EWOULDBLOCK {
			return l, err
		}
		if time.Since(begin) > lockWait {
			return nil, fmt.Errorf("another keeper runs in %s: lock %s: %w", dir, filepath.Join(dir, protocol.LockFile), err)
		}
	}
}

// tryLock is unix.EWOULDBLOCK where another keeper has the lock, or is about to get it. take has it take the lock from
// a keeper that was killed.
func tryLock(dir string, take bool, log *slog.Logger) (_ *lock, err error) {
	turn, err := os.OpenFile(filepath.Join(dir, protocol.TurnFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	if err := unix.Flock(int(turn.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, protocol.LockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	named, err := readLock(f)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == unix.EWOULDBLOCK && take && len(named) > 0 && killed(named[0]) {
		log.Warn("a keeper that was killed does not end: a thread of it waits for a file system that does not answer, "+
			"and keeps its lock; this keeper takes its place", "directory", dir, "pid", named[0].pid)
		f.Close()
		f, err = newLock(path)
	}
	var l *lock
	if err == nil {
		l, err = own(f, named)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

// inheritLock takes over the lock of the program that this one has replaced in the same process.
func inheritLock(fd int) (*lock, error) {
	f := os.NewFile(uintptr(fd), protocol.LockFile)
	named, err := readLock(f)
	if err != nil {
		return nil, err
	}
	return own(f, named)
}

// earlierEnded is closed when the kernel has no threads of earlier keepers any more; nil: it has none.
func (s *sockets) earlierEnded() <-chan struct{} {
	if s.lock == nil {
		return nil // of a keeper that was not started, in a test
	}
	return s.lock.ended
}

// killed says whether a keeper that has the lock was killed. It makes sure of that: from then on the keeper runs no
// more of its program, even if the disk answers.
func killed(p processID) bool {
	if !p.there() || !pidfd.Killed(p.pid) {
		return false
	}
	fd, err := pidfd.Open(p.pid, false)
	if err != nil {
		return false
	}
	defer fd.Close()
	return p.there() && fd.Signal(unix.SIGKILL) == nil
}

// newLock puts a new file, which is locked, in the place of that of the lock.
func newLock(path string) (*os.File, error) {
	next := path + ".new"
	if err := os.Remove(next); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	f, err := os.OpenFile(next, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readLock returns the processes that the file of a lock names: the keeper that has it, or had it, and those before. An
// earlier version of the keeper has named none.
func readLock(f *os.File) ([]processID, error) {
	b := make([]byte, 64<<10)
	n, err := unix.Pread(int(f.Fd()), b, 0)
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: f.Name(), Err: err}
	}
	var named []processID
	for line := range strings.Lines(string(b[:n])) {
		var p processID
		if n, _ := fmt.Sscanf(line, "%d %d\n", &p.pid, &p.start); n == 2 {
			named = append(named, p)
		}
	}
	return named, nil
}

// own is the lock that this process has by a file, which has named these processes so far.
func own(f *os.File, named []processID) (*lock, error) {
	self := processID{pid: os.Getpid()}
	var err error
	if self.start, err = pidfd.StartTime(self.pid); err != nil {
		return nil, err
	}
	l := &lock{file: f}
	text := fmt.Sprintln(self.pid, self.start)
	for _, p := range named {
		if p != self && p.there() {
			l.before = append(l.before, p)
			text += fmt.Sprintln(p.pid, p.start)
		}
	}
	if _, err = f.WriteAt([]byte(text), 0); err == nil {
		err = f.Truncate(int64(len(text)))
	}
	if err != nil {
		return nil, err
	}
	if len(l.before) == 0 {
		return l, nil
	}
	ended := make(chan struct{})
	l.ended = ended
	go func() {
		defer close(ended)
		for _, p := range l.before {
			p.awaitEnd()
		}
	}()
	return l, nil
}

// awaitEnd waits until a process that was killed has no threads any more. Then it is gone, or its parent is about to
// reap it.
func (p processID) awaitEnd() {
	fd, err := pidfd.Open(p.pid, false)
	if err != nil {
		return
	}
	defer fd.Close()
	if p.there() {
		_, _ = fd.Wait()
	}
}
