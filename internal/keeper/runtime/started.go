package runtime

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup/nested"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/record"
)

const (
	// maxLooks bounds how often KillStarted looks for processes that it has not killed yet.
	maxLooks = 100
	// quietLooks are how many looks in a row find no new process when all are killed. A process may have been forked
	// right before its parent was killed, and appear in the cgroup after the next look.
	quietLooks = 2
	lookPause  = time.Millisecond
)

// KillStarted kills the first process of an exec, and all that it has started and that can be told to be its own: see
// started. paths are the container's cgroups. A process that is killed forks no more.
func KillStarted(e *record.Exec, paths map[string]string) {
	type process struct {
		pid   int
		start uint64
	}
	killed := map[process]bool{}
	for looks, quiet := 0, 0; looks < maxLooks && quiet < quietLooks; looks++ {
		if looks > 0 {
			time.Sleep(lookPause)
		}
		quiet++
		for _, pid := range started(e, paths) {
			start, err := pidfd.StartTime(pid)
			if err != nil || killed[process{pid, start}] {
				continue
			}
			quiet = 0
			killed[process{pid, start}] = true
			cgroupdir.Signal(cgroupdir.Members(paths), pid, unix.SIGKILL)
		}
	}
}

// started returns the processes of a container that an exec has started: its session and its descendants, and those
// that are in the exec's cgroup namespace, or have its mark, where it has such. Some may be in the list twice.
func started(e *record.Exec, paths map[string]string) []int {
	pids := cgroupdir.Family(e.PID, paths)
	if e.CgroupNamespace == "" && !e.Marked {
		return pids
	}
	all, err := nested.Processes(cgroupdir.Members(paths))
	if err != nil {
		return pids
	}
	return append(pids, slices.DeleteFunc(all, func(pid int) bool {
		if e.CgroupNamespace != "" && procfs.Namespace(pid, "cgroup") == e.CgroupNamespace {
			return false
		}
		return !e.Marked || !hasMark(memory.environment(pid, maxEnvironment), e.ExecID)
	})...)
}
