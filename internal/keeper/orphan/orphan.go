// Package orphan reaps children of the keeper for which no code of the keeper waits.
package orphan

import (
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/procfs"
)

// Reaper reaps children of this process that nobody waits for: daemons of containers in the node's PID namespace, and
// others that the kernel hands to a subreaper.
//
// A zombie may belong to a start that is under way (libcontainer and os/exec wait for theirs). So one is reaped only
// when it has been seen by two looks, everything that was under way at the first has ended, and no record has it.
type Reaper struct {
	owns func(pid int) bool
	log  *slog.Logger
	wake chan os.Signal

	mu       sync.Mutex
	last     uint64
	underway map[uint64]struct{}
	seen     map[int]uint64 // zombie to the last number given out when it was first seen
}

const orphanLook = 200 * time.Millisecond

// New makes a reaper. owns says whether somebody waits for a process.
func New(owns func(int) bool, log *slog.Logger) *Reaper {
	return &Reaper{
		owns: owns, log: log, wake: make(chan os.Signal, 1),
		underway: map[uint64]struct{}{}, seen: map[int]uint64{},
	}
}

// Begin is called before anything that makes children of its own, end when it has waited for them or put them into a
// record.
func (o *Reaper) Begin() (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	n := o.last
	o.underway[n] = struct{}{}
	return func() {
		o.mu.Lock()
		delete(o.underway, n)
		o.mu.Unlock()
	}
}

// Run reaps for as long as this process lives.
func (o *Reaper) Run() {
	signal.Notify(o.wake, unix.SIGCHLD)
	for again := true; ; {
		if again {
			select {
			case <-o.wake:
			case <-time.After(orphanLook):
			}
		} else {
			<-o.wake
			// Most deaths are of processes that have a waiter: leave it the time to be first.
			time.Sleep(orphanLook / 4)
		}
		again = o.look()
	}
}

// look is true if there are zombies left.
func (o *Reaper) look() bool {
	if !anyZombie() {
		o.mu.Lock()
		clear(o.seen)
		o.mu.Unlock()
		return false
	}
	zombies := procfs.Zombies()
	o.mu.Lock()
	defer o.mu.Unlock()
	now := map[int]uint64{}
	for _, pid := range zombies {
		first, ok := o.seen[pid]
		if !ok {
			now[pid] = o.last
			continue
		}
		now[pid] = first
		if o.busy(first) || o.owns(pid) {
			continue
		}
		var ws unix.WaitStatus
		if got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil); err == nil && got == pid {
			o.log.Debug("orphan reaped", "pid", pid)
		}
		delete(now, pid)
	}
	o.seen = now
	return len(now) > 0
}

// busy says whether something that began no later than n is under way.
func (o *Reaper) busy(n uint64) bool {
	for b := range o.underway {
		if b <= n {
			return true
		}
	}
	return false
}

// anyZombie looks without reaping.
func anyZombie() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && (*[2]int32)(unsafe.Pointer(&info))[0] != 0
}
