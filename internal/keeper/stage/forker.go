package stage

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/timerslack"
)

// forker is a thread that forks stages when the keeper has many descriptors: its own table has only those of the stage
// that it starts. A fork copies the table of the thread that calls it, and the execve after it closes the copies; the
// keeper's own table has eight descriptors for each container on the node.
//
// Go's runtime allows this: it runs nothing but the locked goroutine on the thread, and it makes no threads from it. It
// does use its epoll descriptor, and the eventfd in it, from each thread, so both stay open here.
type forker struct {
	work chan func()
	self int // a pidfd of the keeper, whose descriptors take duplicates
}

// newForker starts the thread, which lives as long as the program. The descriptors in keep have the same numbers in
// both tables; the others of the forker are closed.
func newForker(keep ...int) (*forker, error) {
	l := &forker{work: make(chan func())}
	started := make(chan error)
	go l.serve(keep, started)
	return l, <-started
}

func (l *forker) serve(keep []int, started chan<- error) {
	runtime.LockOSThread() // and never unlocked: another goroutine would find other descriptors here
	if unix.Gettid() == unix.Getpid() {
		// pidfd_getfd(2) duplicates from the table of this very thread. Locked as it is, another goroutine gets another.
		other := make(chan error)
		go l.serve(keep, other)
		err := <-other
		runtime.UnlockOSThread()
		started <- err
		return
	}
	err := l.leaveTable(keep)
	started <- err
	if err != nil {
		return // the thread ends with its goroutine
	}
	for f := range l.work {
		f()
	}
}

// leaveTable gives the calling thread a descriptor table of its own.
func (l *forker) leaveTable(keep []int) (err error) {
	if l.self, err = unix.PidfdOpen(unix.Getpid(), 0); err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	one, err := unix.PidfdGetfd(l.self, l.self, 0) // a seccomp filter around the keeper may refuse it
	if err != nil {
		unix.Close(l.self)
		return os.NewSyscallError("pidfd_getfd", err)
	}
	unix.Close(one)
	polled, err := pollDescriptors()
	if err != nil {
		return err
	}
	keep = slices.Concat(keep, polled, []int{0, 1, 2, l.self})
	slices.Sort(keep)
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	next := uint(0)
	for _, fd := range slices.Compact(keep) {
		if first := next; first < uint(fd) {
			if err := unix.CloseRange(first, uint(fd)-1, 0); err != nil {
				return os.NewSyscallError("close_range", err)
			}
		}
		next = uint(fd) + 1
	}
	if err := unix.CloseRange(next, ^uint(0)>>32, 0); err != nil {
		return os.NewSyscallError("close_range", err)
	}
	timerslack.ThreadAsUsual()
	return nil
}

// pollDescriptors are those of Go's poller: an epoll, and the eventfd that ends its waiting. Other eventfds are not
// among them, such as those that a program has left to the one that it has executed in its own place.
func pollDescriptors() ([]int, error) {
	// Go makes them for the first file that can be polled.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	open, err := os.ReadDir(descriptors)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, e := range open {
		epoll, err := strconv.Atoi(e.Name())
		if err != nil || !is(epoll, "[eventpoll]") {
			continue
		}
		info, err := os.ReadFile(filepath.Join("/proc/self/fdinfo", e.Name()))
		if err != nil {
			return nil, err
		}
		fds = append(fds, epoll)
		for line := range strings.Lines(string(info)) {
			var polled int
			if n, _ := fmt.Sscanf(line, "tfd: %d", &polled); n == 1 && is(polled, "[eventfd]") {
				fds = append(fds, polled)
			}
		}
	}
	if len(fds) < 2 {
		return nil, fmt.Errorf("the poller of Go has %d descriptors, not an epoll and an eventfd", len(fds))
	}
	return fds, nil
}

const descriptors = "/proc/self/fd"

// is says whether a descriptor is of this anonymous kind.
func is(fd int, kind string) bool {
	target, err := os.Readlink(filepath.Join(descriptors, strconv.Itoa(fd)))
	return err == nil && target == "anon_inode:"+kind
}

// do runs a function on the thread.
func (l *forker) do(f func()) {
	done := make(chan struct{})
	l.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// take replaces descriptors of the keeper by duplicates in the forker's table, but for kept, which is in both, and
// returns what closes them, also where it fails. It is called on the forker's thread.
func (l *forker) take(fds []int, kept int) (closeAll func(), err error) {
	own := map[int]int{kept: kept}
	closeAll = func() {
		for theirs, fd := range own {
			if theirs != kept {
				unix.Close(fd)
			}
		}
	}
	for i, theirs := range fds {
		fd, ok := own[theirs]
		if !ok {
			if fd, err = unix.PidfdGetfd(l.self, theirs, 0); err != nil {
				return closeAll, fmt.Errorf("duplicate descriptor %d for a stage: pidfd_getfd: %w", theirs, err)
			}
			own[theirs] = fd
		}
		fds[i] = fd
	}
	return closeAll, nil
}
