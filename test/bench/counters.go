package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/test/node"
)

// event is something that the kernel counts for a thread. A tracepoint is a path below tracefs' events.
type event struct {
	key        string
	software   uint64
	tracepoint string
	filter     string
}

// events are counted of an operation. A wake-up is counted at the sleep before it, since the kernel counts wake-ups for
// who wakes as well as for who is woken: it is a switch away from a thread that cannot go on (its state is not 0, and
// not that of a thread that another one has displaced, which is 256).
var events = []event{
	{key: "calls", tracepoint: "raw_syscalls/sys_enter"},
	{key: "switches", software: unix.PERF_COUNT_SW_CONTEXT_SWITCHES},
	{key: "wakeups", tracepoint: "sched/sched_switch", filter: "prev_state & 255"},
	{key: "cpu", software: unix.PERF_COUNT_SW_TASK_CLOCK},
}

// inheritThread has a counter count further threads of its process, and no further processes (Linux 5.13).
const inheritThread = 1 << 35

// part is a kind of process of a runtime.
type part string

const (
	partDaemon   part = "daemon"
	partKeeper   part = "keeper"
	partChildren part = "children" // all others: what the two start, shims and monitors, and containers
)

// parts are all, in the order of the report.
var parts = []part{partDaemon, partKeeper, partChildren}

// counters count the events of some processes, and of all that they start from now on, in the kernel
// (perf_event_open(2)): nobody waits for a tracer.
type counters struct {
	whole [][]int          // files by event: with all children
	own   map[part][][]int // the same of the daemon and of the keeper alone
}

// tally is how often something has happened, by event, in the order of events.
type tally map[part][]float64

// total is that of all parts.
func (t tally) total(event int) (sum float64) {
	for _, part := range parts {
		sum += t[part][event]
	}
	return sum
}

// openCounters begins to count. traces is the directory of tracefs.
func openCounters(traces string, pids map[int]part) (*counters, error) {
	attributes := make([]unix.PerfEventAttr, len(events))
	for i, e := range events {
		a := &attributes[i]
		a.Size, a.Type, a.Config = uint32(unsafe.Sizeof(*a)), unix.PERF_TYPE_SOFTWARE, e.software
		if e.tracepoint != "" {
			text, err := os.ReadFile(filepath.Join(traces, "events", e.tracepoint, "id"))
			if err != nil {
				return nil, err
			}
			a.Type = unix.PERF_TYPE_TRACEPOINT
			if a.Config, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err != nil {
				return nil, err
			}
		}
	}
	// A thread that begins meanwhile would be counted twice or not at all.
	for range 20 {
		threads, err := threadsOf(pids)
		if err != nil {
			return nil, err
		}
		c := &counters{whole: make([][]int, len(events)), own: map[part][][]int{}}
		err = c.open(attributes, threads)
		again, listErr := threadsOf(pids)
		if err == nil && listErr == nil && slices.Equal(threads, again) {
			return c, nil
		}
		c.close()
		if err := errors.Join(err, listErr); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, err
		}
	}
	return nil, errors.New("the runtime's threads come and go too fast to be counted")
}

// thread is one of a process.
type thread struct {
	id   int
	part part
}

func threadsOf(pids map[int]part) (list []thread, err error) {
	for pid, part := range pids {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			id, err := strconv.Atoi(entry.Name())
			if err != nil {
				return nil, err
			}
			list = append(list, thread{id, part})
		}
	}
	slices.SortFunc(list, func(a, b thread) int { return a.id - b.id })
	return list, nil
}

func (c *counters) open(attributes []unix.PerfEventAttr, threads []thread) error {
	for _, t := range threads {
		for i, a := range attributes {
			a.Bits = unix.PerfBitInherit
			fd, err := openCounter(&a, t.id, events[i])
			if err != nil {
				return err
			}
			c.whole[i] = append(c.whole[i], fd)
			if t.part == partChildren {
				continue
			}
			a.Bits |= inheritThread
			if fd, err = openCounter(&a, t.id, events[i]); err != nil {
				return err
			}
			if c.own[t.part] == nil {
				c.own[t.part] = make([][]int, len(events))
			}
			c.own[t.part][i] = append(c.own[t.part][i], fd)
		}
	}
	return nil
}

func openCounter(a *unix.PerfEventAttr, thread int, e event) (int, error) {
	fd, err := unix.PerfEventOpen(a, thread, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("count %s of thread %d: %w", e.key, thread, err)
	}
	if e.filter == "" {
		return fd, nil
	}
	text, err := unix.BytePtrFromString(e.filter)
	if err == nil {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.PERF_EVENT_IOC_SET_FILTER,
			uintptr(unsafe.Pointer(text))); errno != 0 {
			err = errno
		}
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("filter %s by %q: %w", e.tracepoint, e.filter, err), unix.Close(fd))
	}
	return fd, nil
}

// read is what has been counted so far.
func (c *counters) read() (tally, error) {
	t := tally{}
	for _, part := range parts {
		t[part] = make([]float64, len(events))
	}
	for i := range events {
		for part, files := range c.own {
			value, err := sum(files[i])
			if err != nil {
				return nil, err
			}
			t[part][i] = value
		}
		whole, err := sum(c.whole[i])
		if err != nil {
			return nil, err
		}
		t[partChildren][i] = whole - t[partDaemon][i] - t[partKeeper][i]
	}
	return t, nil
}

func sum(files []int) (total float64, err error) {
	for _, fd := range files {
		var value [8]byte
		if _, err := unix.Read(fd, value[:]); err != nil {
			return 0, fmt.Errorf("read a counter: %w", err)
		}
		total += float64(binary.NativeEndian.Uint64(value[:]))
	}
	return total, nil
}

func (c *counters) close() {
	all := slices.Concat(c.whole...)
	for _, files := range c.own {
		all = append(all, slices.Concat(files...)...)
	}
	for _, fd := range all {
		_ = unix.Close(fd)
	}
}

// roles are the processes whose events are those of an operation: the daemon, Berth's keeper, and with further ones
// what only they take part in.
func (p *peer) roles(further ...int) (map[int]part, error) {
	daemon, err := node.Peer(p.socket)
	if err != nil {
		return nil, err
	}
	roles := map[int]part{}
	for _, pid := range further {
		roles[pid] = partChildren
	}
	for pid, name := range p.own.byPID {
		if name == "berth-keeper" {
			roles[pid] = partKeeper
		}
	}
	roles[daemon] = partDaemon
	return roles, nil
}
