package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"berth/test/node"
)

// processes are those of a runtime itself: the daemon, which is who listens on its socket; every ancestor
// of a container's process below init and outside of this program's own line, which are monitors, shims and keepers;
// and what lives in a pod's network namespace and is no container's, which are pause processes. Containers are known
// by a variable in their environment. What was found once counts as long as it lives.
type processes struct {
	byPID map[int]string // program's name
}

// find looks for the runtime's processes. A pod of this run must be there, and none of another peer: so every container
// that bears the mark is of this one.
func (s *processes) find(socket string) error {
	all, err := node.Processes()
	if err != nil {
		return err
	}
	daemon, err := node.Peer(socket)
	if err != nil {
		return fmt.Errorf("who listens on %s: %w", socket, err)
	}
	if s.byPID == nil {
		s.byPID = map[int]string{}
	}
	byPID := map[int]node.Process{}
	for _, p := range all {
		byPID[p.PID] = p
	}
	ours := map[int]bool{} // this program and what started it
	for pid := os.Getpid(); pid > 1; pid = byPID[pid].Parent {
		ours[pid] = true
	}
	host := byPID[os.Getpid()].NetNS
	add := func(pid int) {
		if pid > 1 && !ours[pid] {
			s.byPID[pid] = name(byPID[pid])
		}
	}
	add(daemon)
	marked, pods := map[int]bool{}, map[string]bool{}
	for _, p := range all {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		if err == nil && strings.Contains(string(environment), mark) {
			marked[p.PID] = true
		}
	}
	for pid := range marked {
		if ns := byPID[pid].NetNS; ns != host {
			pods[ns] = true
		}
		for parent := byPID[pid].Parent; parent > 1; parent = byPID[parent].Parent {
			if !marked[parent] {
				add(parent)
			}
		}
	}
	for _, p := range all {
		if pods[p.NetNS] && !marked[p.PID] {
			add(p.PID)
		}
	}
	return nil
}

func name(p node.Process) string {
	if p.Exe != "" {
		return filepath.Base(p.Exe)
	}
	if len(p.Args) > 0 {
		return filepath.Base(p.Args[0])
	}
	return "?"
}

// memory is the proportional set size of all, in bytes.
func (s *processes) memory() (uint64, error) {
	var total uint64
	for pid := range s.byPID {
		pss, err := node.PSS(pid)
		if err != nil {
			if os.IsNotExist(err) {
				delete(s.byPID, pid) // it has ended
				continue
			}
			return 0, err
		}
		total += pss
	}
	return total, nil
}

// cpu is the processor time of all that live.
func (s *processes) cpu() time.Duration {
	var total time.Duration
	for pid := range s.byPID {
		if used, err := node.CPUTime(pid); err == nil {
			total += used
		}
	}
	return total
}

// pids are all that were found.
func (s *processes) pids() map[int]bool {
	pids := map[int]bool{}
	for pid := range s.byPID {
		pids[pid] = true
	}
	return pids
}

// voluntary is how often threads of all that live have gone to sleep, and so been woken.
func (s *processes) voluntary() (total int64) {
	for pid := range s.byPID {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid)) // the pattern is well formed
		for _, file := range files {
			text, _ := os.ReadFile(file) // the thread may have ended
			if _, rest, ok := strings.Cut(string(text), "\nvoluntary_ctxt_switches:"); ok {
				line, _, _ := strings.Cut(rest, "\n")
				n, _ := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
				total += n
			}
		}
	}
	return total
}

// threadTimes are the processor times of threads so far.
type threadTimes map[int]time.Duration

// kernelThreads are those of the kernel's threads.
func kernelThreads() (threadTimes, error) {
	const kthreadd = 2
	all, err := node.Processes()
	if err != nil {
		return nil, err
	}
	times := threadTimes{}
	for _, p := range all {
		if p.Parent != kthreadd {
			continue
		}
		if used, err := node.CPUTime(p.PID); err == nil {
			times[p.PID] = used
		}
	}
	return times, nil
}

// since is what they have taken since an earlier time. A thread that has ended since then is left out.
func (t threadTimes) since(earlier threadTimes) (total time.Duration) {
	for pid, used := range t {
		total += used - earlier[pid]
	}
	return total
}

// names counts the processes by program.
func (s *processes) names() map[string]int {
	counts := map[string]int{}
	for _, name := range s.byPID {
		counts[name]++
	}
	return counts
}

func sortedKeys(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
