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
	// maxLooks bounds how often KillStarted finds processes that it has not killed yet.
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
	for looks, quiet, deadline := 0, 0, time.Now().Add(moveWait); looks < maxLooks; time.Sleep(lookPause) {
		over := time.Now().After(deadline) // before the look: the machine may stand still during it
		pids, unread := started(e, paths)
		quiet++
		for _, pid := range pids {
			start, err := pidfd.StartTime(pid)
			if err != nil || killed[process{pid, start}] {
				continue
			}
			quiet = 0
			killed[process{pid, start}] = true
			cgroupdir.Signal(cgroupdir.Members(paths), pid, unix.SIGKILL)
		}
		switch {
		case quiet == 0:
			looks++
		case quiet >= quietLooks && (!unread || over):
			return
		}
	}
}

// started returns the processes of a container that an exec has started: its session and its descendants, and those
// that are in the exec's cgroup namespace, or have its mark, where it has such. Some may be in the list twice. unread
// is that of marked.
func started(e *record.Exec, paths map[string]string) (pids []int, unread bool) {
	pids = cgroupdir.Family(e.PID, paths)
	if e.Marked {
		var found []int
		found, unread = marked(paths, e.ExecID)
		pids = append(pids, found...)
	}
	if e.CgroupNamespace != "" {
		all, err := nested.Processes(cgroupdir.Members(paths))
		if err != nil {
			return pids, unread
		}
		pids = append(pids, slices.DeleteFunc(all, func(pid int) bool {
			return procfs.Namespace(pid, "cgroup") != e.CgroupNamespace
		})...)
	}
	return pids, unread
}
