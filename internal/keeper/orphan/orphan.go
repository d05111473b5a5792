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
	owners Owners
	log    *slog.Logger
	wake   chan os.Signal

	mu       sync.Mutex
	last     uint64
	underway map[uint64]struct{}
	seen     map[int]uint64 // zombie to the last number given out when it was first seen
}

// Owners knows which children of this process somebody waits for.
type Owners interface {
	// Owned are all of them. What a record gets meanwhile may be missing.
	Owned() map[int]bool
	// Owns tells whether a process is among them now.
	Owns(pid int) bool
}

// orphanLook is the time between two looks at the same zombies.
const orphanLook = 200 * time.Millisecond

// New makes a reaper of what has no owner.
func New(owners Owners, log *slog.Logger) *Reaper {
	return &Reaper{
		owners: owners, log: log, wake: make(chan os.Signal, 1),
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

// Run reaps for as long as this process lives. However many children end, it looks at most every 50 ms: a node's execs
// end hundreds of times a second, and a look reads a list of all children.
func (o *Reaper) Run() {
	signal.Notify(o.wake, unix.SIGCHLD)
	for again := true; ; {
		if again {
			time.Sleep(orphanLook)
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
	zombies := procfs.Zombies(o.owners.Owned()) // most children run, and have an owner
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
		if o.busy(first) || o.owners.Owns(pid) {
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
