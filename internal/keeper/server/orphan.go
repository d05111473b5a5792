package server

import (
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// orphans reaps children of this process that nobody waits for: daemons of containers in the node's PID namespace, and
// others that the kernel hands to a subreaper.
//
// A zombie may belong to a start that is under way (libcontainer and os/exec wait for theirs). So one is reaped only
// when it has been seen by two looks, everything that was under way at the first has ended, and no row has it.
type orphans struct {
	owns func(pid int) bool
	log  *slog.Logger
	wake chan os.Signal

	mu       sync.Mutex
	last     uint64
	underway map[uint64]struct{}
	seen     map[int]uint64 // zombie to the last number given out when it was first seen
}

const orphanLook = 200 * time.Millisecond

func newOrphans(owns func(int) bool, log *slog.Logger) *orphans {
	return &orphans{
		owns: owns, log: log, wake: make(chan os.Signal, 1),
		underway: map[uint64]struct{}{}, seen: map[int]uint64{},
	}
}

// begin is called before anything that makes children of its own, end when it has waited for them or put them into a row.
func (o *orphans) begin() (end func()) {
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

func (o *orphans) run() {
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
func (o *orphans) look() bool {
	if !anyZombie() {
		o.mu.Lock()
		clear(o.seen)
		o.mu.Unlock()
		return false
	}
	zombies := zombies()
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
func (o *orphans) busy(n uint64) bool {
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

// children lists the children of this process.
func children() []int {
	var pids []int
	lists, _ := filepath.Glob("/proc/self/task/*/children") // CONFIG_PROC_CHILDREN
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if len(lists) > 0 {
		return pids
	}
	self := strconv.Itoa(os.Getpid())
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := status(pid); len(f) > 1 && f[1] == self {
			pids = append(pids, pid)
		}
	}
	return pids
}

// zombies lists the children that have ended.
func zombies() []int {
	return slices.DeleteFunc(children(), func(pid int) bool {
		f := status(pid)
		return len(f) < 2 || f[0] != "Z"
	})
}

// status are the state of a process, its parent, and what else proc_pid_stat(5) has behind the name.
func status(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}
