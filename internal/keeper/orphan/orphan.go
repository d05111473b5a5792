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

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/procfs"
)

// Reaper reaps children of this process that nobody waits for: daemons of containers in the node's PID namespace, and
// others that the kernel hands to a subreaper.
//
// A zombie may belong to a start that is under way (libcontainer and os/exec wait for theirs). So one is reaped only
// when it has been seen by two looks, everything that was under way at the first has ended, and no record has it.
//
// Something under way may take minutes, or for ever. So a zombie is also reaped if it is older than that, which has
// made no process before it began, or younger than the last process that it makes. A hook of a container may take
// minutes: while it runs, the start or removal that waits for it makes no processes. A start, of a container or of an
// exec, has made its last process when it has settled: that one may wait for a volume that does not answer, or be held
// by the container.
type Reaper struct {
	owners Owners
	hooks  Hooks
	log    *slog.Logger
	wake   chan os.Signal

	mu       sync.Mutex
	last     uint64
	underway map[uint64]operation
	seen     map[int]uint64 // zombie to the last number given out when it was first seen
}

// operation is something that makes children of its own.
type operation struct {
	container string // that it starts or removes; empty: it may make children while a hook of a container runs
	began     time.Time
	// born is began in clock ticks since boot; 0: not known. None of its children has started before.
	born uint64
	// settled is the time from which on it makes no children, in clock ticks since boot; 0: it may make some.
	settled uint64
}

// Hooks returns the containers for which this process runs a hook, each with the time at which the child that runs it
// has started, in clock ticks since boot. except are children that run none.
type Hooks func(except map[int]bool) map[string]uint64

// Owners knows which children of this process somebody waits for.
type Owners interface {
	// Owned are all of them. What a record gets meanwhile may be missing.
	Owned() map[int]bool
	// Owns tells whether a process is among them now.
	Owns(pid int) bool
}

// orphanLook is the time between two looks at the same zombies.
const orphanLook = 200 * time.Millisecond

// slow is the age of an operation from which on the reaper compares its times with those of zombies. Most end before
// that.
const slow = time.Second

// New makes a reaper of what has no owner.
func New(owners Owners, hooks Hooks, log *slog.Logger) *Reaper {
	return &Reaper{
		owners: owners, hooks: hooks, log: log, wake: make(chan os.Signal, 1),
		underway: map[uint64]operation{}, seen: map[int]uint64{},
	}
}

// Begin is called before anything that makes children of its own, end when it has waited for them or put them into a
// record.
func (o *Reaper) Begin() (end func()) { return o.BeginFor("") }

// BeginFor is Begin for the start or the removal of a container, which makes no children while a hook of the container
// runs, but for the one that runs the hook.
func (o *Reaper) BeginFor(container string) (end func()) {
	_, end = o.BeginStart(container)
	return end
}

// BeginStart is BeginFor for the start of a container, or of an exec, for which container is empty: no hook runs then.
// settle is called when the start makes no children any more.
func (o *Reaper) BeginStart(container string) (settle, end func()) {
	n, end := o.begin(container)
	return func() {
		now := ticks()
		o.mu.Lock()
		defer o.mu.Unlock()
		if op, ok := o.underway[n]; ok {
			op.settled = now
			o.underway[n] = op
		}
	}, end
}

func (o *Reaper) begin(container string) (n uint64, end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	n = o.last
	o.underway[n] = operation{container: container, began: time.Now(), born: ticks()}
	return n, func() {
		o.mu.Lock()
		delete(o.underway, n)
		o.mu.Unlock()
	}
}

// ticks is the present time as the kernel has the start times of processes: in hundredths of a second since boot.
func ticks() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return uint64(now.Nano() / (int64(time.Second) / 100))
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
	owned := o.owners.Owned()
	zombies := procfs.Zombies(owned) // most children run, and have an owner
	// The order counts. A hook that runs when the zombies are known already has run since its start, and so throughout the
	// life of a zombie that has started later.
	starts := map[int]uint64{}
	var hooks map[string]uint64
	if len(zombies) > 0 && o.anySlow() {
		for _, pid := range zombies {
			starts[pid], _ = pidfd.StartTime(pid)
		}
		hooks = o.hooks(owned)
	}
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
		if o.busy(first, starts[pid], hooks) || o.owners.Owns(pid) {
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

// busy says whether something that began no later than n is under way and may have made a child that has started at
// this time. hooks are those that run.
func (o *Reaper) busy(n, start uint64, hooks map[string]uint64) bool {
	for b, op := range o.underway {
		if b > n {
			continue
		}
		hook, waits := hooks[op.container]
		switch {
		case start != 0 && start < op.born:
		case waits && start > hook:
		case op.settled != 0 && start > op.settled:
		default:
			return true
		}
	}
	return false
}

// anySlow says whether something has been under way for so long that it may wait for a hook, a volume or a container.
func (o *Reaper) anySlow() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.underway {
		if time.Since(op.began) >= slow {
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
