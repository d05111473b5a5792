package syscalls

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth/test/node"
)

// tracing is an instance of the kernel's tracing (tracefs) that notes the system calls of some processes and of all
// that they start. It needs no tracer: nobody waits for another process at each call, as with ptrace(2).
type tracing struct {
	dir     string
	unmount func() error // of tracefs
	pids    []int        // that it follows
}

// errNoTracing: the kernel has been built without it, or does not let this process use it.
var errNoTracing = errors.New("the kernel does not trace system calls (CONFIG_FTRACE_SYSCALLS)")

const (
	event = "events/raw_syscalls/sys_enter/enable"
	// bufferKiB is for each processor; one start of a pod takes less than 1 MiB.
	bufferKiB = "4096"
	// prefix is that of the names of instances; the process ID follows.
	prefix = "berth-test-"
)

// newTracing makes an instance. mount is a directory on which tracefs is mounted where it is not mounted yet.
func newTracing(mount string) (t *tracing, err error) {
	t = &tracing{}
	top, unmount, err := node.Tracefs(mount)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoTracing, err)
	}
	t.unmount = unmount
	instances := filepath.Join(top, "instances")
	removeStale(instances)
	t.dir = filepath.Join(instances, prefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(t.dir, 0o700); err != nil {
		t.dir = ""
		return nil, errors.Join(fmt.Errorf("%w: %w", errNoTracing, err), t.close())
	}
	if _, err := os.Stat(filepath.Join(t.dir, event)); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errNoTracing, err), t.close())
	}
	for _, setting := range [][2]string{
		{"tracing_on", "0"}, {"buffer_size_kb", bufferKiB},
		{"options/event-fork", "1"}, {"options/record-tgid", "1"}, {event, "1"},
	} {
		if err := t.set(setting[0], setting[1]); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

// removeStale removes the instances of tests that were killed: each has a buffer in the kernel.
func removeStale(instances string) {
	old, _ := filepath.Glob(filepath.Join(instances, prefix+"*")) // the pattern is well formed
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), prefix))
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = syscall.Rmdir(dir) // another test may do the same
		}
	}
}

func (t *tracing) set(name, value string) error {
	return os.WriteFile(filepath.Join(t.dir, name), []byte(value), 0o600)
}

func (t *tracing) close() error {
	var err error
	if t.dir != "" {
		err = errors.Join(t.set("tracing_on", "0"), t.set(event, "0"), t.set("set_event_pid", ""))
		// A reader that has just gone, or a process that ends, may hold the instance a moment longer.
		removed := syscall.Rmdir(t.dir)
		for try := 0; errors.Is(removed, syscall.EBUSY) && try < 100; try++ {
			time.Sleep(10 * time.Millisecond)
			removed = syscall.Rmdir(t.dir)
		}
		err = errors.Join(err, removed)
	}
	return errors.Join(err, t.unmount())
}

// follow names the processes whose calls are noted: all of their threads, and what they start from now on.
func (t *tracing) follow(pids ...int) error {
	t.pids = pids
	var threads []string
	for _, pid := range pids {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, entry := range entries {
			threads = append(threads, entry.Name())
		}
	}
	return t.set("set_event_pid", strings.Join(threads, " "))
}

// during counts the system calls that are begun while f runs and in the moment after it, by process and number.
func (t *tracing) during(f func() error) (map[int]map[int]int, error) {
	if err := errors.Join(t.set("trace", ""), t.set("tracing_on", "1")); err != nil {
		return nil, err
	}
	err := errors.Join(f(), t.rest()) // a process that has answered writes its record
	if err := errors.Join(err, t.set("tracing_on", "0")); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(t.dir, "trace"))
	if err != nil {
		return nil, err
	}
	if err := t.complete(); err != nil {
		return nil, err
	}
	return parse(text)
}

// rest waits until the processes have done nothing for 200 ms, for at most 20 s.
func (t *tracing) rest() error {
	const quiet, limit = 200 * time.Millisecond, 20 * time.Second
	began, since, before := time.Now(), time.Now(), ""
	for {
		now, runs, err := activity(t.pids)
		if err != nil {
			return err
		}
		if runs || now != before {
			since, before = time.Now(), now
		}
		if time.Since(since) > quiet || time.Since(began) > limit {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// activity is how much processor time processes have had, and whether one of their threads runs, or would if it had a
// processor.
func activity(pids []int) (times string, runs bool, err error) {
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			return "", false, fmt.Errorf("process %d has no threads: %w", pid, err)
		}
		for _, thread := range append(threads, fmt.Sprintf("/proc/%d/stat", pid)) {
			stat, err := os.ReadFile(thread)
			if err != nil {
				continue // it has ended
			}
			fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
			if len(fields) < 13 {
				return "", false, fmt.Errorf("%s: %q", thread, stat)
			}
			runs = runs || fields[0] == "R"
			times += fields[11] + " " + fields[12] + "\n"
		}
	}
	return times, runs, nil
}

// complete is an error where the buffer was too small for all that happened.
func (t *tracing) complete() error {
	files, err := filepath.Glob(filepath.Join(t.dir, "per_cpu/cpu*/stats"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no statistics of the trace: %w", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !bytes.Contains(text, []byte("\noverrun: 0\n")) || !bytes.Contains(text, []byte("dropped events: 0\n")) {
			return fmt.Errorf("the trace is not complete: %s", text)
		}
	}
	return nil
}

// parse reads lines `berthd-12 (10) [001] ..... 5.1: sys_enter: NR 257 (…)`: thread, process, number. A name may hold
// spaces and parentheses.
func parse(text []byte) (map[int]map[int]int, error) {
	out := map[int]map[int]int{}
	for line := range strings.Lines(string(text)) {
		head, call, ok := strings.Cut(line, ": sys_enter: NR ")
		if !ok {
			if strings.HasPrefix(line, "#") {
				continue
			}
			return nil, fmt.Errorf("a trace has the line %q", line)
		}
		head, _, ok = cutLast(head, ") [")
		_, process, found := cutLast(head, "(")
		number, _, _ := strings.Cut(call, " ")
		pid, pidErr := strconv.Atoi(strings.TrimSpace(process))
		nr, nrErr := strconv.Atoi(number)
		if !ok || !found || nrErr != nil {
			return nil, fmt.Errorf("a trace has the line %q", line)
		}
		if pidErr != nil { // `(-------)`: it has ended before the kernel noted its process
			pid = 0
		}
		if out[pid] == nil {
			out[pid] = map[int]int{}
		}
		out[pid][nr]++
	}
	return out, nil
}

func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}
