package runtime

import (
	"fmt"
	"os"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/procfs"
)

// killPause is how long KillMatching waits before it looks for processes again.
const killPause = 10 * time.Millisecond

// KillMatching kills the processes of the node that match and can be calls of a runtime for the containers in of (IDs,
// or cgroup paths that have them), but never this one, until none is found. One that is found may have started another
// one before it is killed, and a killed one takes a moment to end. KillMatching returns false if some are still found
// after limit.
func KillMatching(limit time.Duration, of []string, match func(pid int) bool) (ended bool, err error) {
	o := originOf(of)
	wanted := func(pid int) bool { return match(pid) && o.runtime(pid) }
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(killPause) {
		pids, err := procfs.All()
		if err != nil {
			return false, err
		}
		killed := false
		for _, pid := range pids {
			if pid != os.Getpid() && wanted(pid) {
				killed = kill(pid, wanted) || killed
			}
		}
		if !killed {
			return true, nil
		}
	}
	return false, nil
}

// kill kills a process if it is still wanted once it is held: another one may have got its ID.
func kill(pid int, wanted func(pid int) bool) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return wanted(pid) && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// containerID is an ID of a container or a pod in a cgroup path.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// origin tells calls of a runtime from processes that only look like them. A process can have any command line, and
// those of a container in the node's PID namespace, or of a user of the node, see the calls' own. If they were killed,
// there could always be more of them, and no search would end.
type origin struct {
	self string          // the keeper's own cgroups
	own  map[string]bool // the IDs of the containers that the calls are for
	also map[string]bool // IDs in the keeper's own cgroups, where it runs in a container itself
}

func originOf(of []string) origin {
	o := origin{self: procfs.Cgroups(os.Getpid()), own: map[string]bool{}, also: map[string]bool{}}
	for _, text := range of {
		for _, id := range containerID.FindAllString(text, -1) {
			o.own[id] = true
		}
	}
	for _, id := range containerID.FindAllString(o.self, -1) {
		o.also[id] = true
	}
	return o
}

// runtime tells whether a process can be a runtime's call, or what such a call has made: it is in the keeper's cgroup
// or in that of its container, or belongs to the keeper's user and is in the cgroup of no other container.
func (o origin) runtime(pid int) bool {
	cgroups := procfs.Cgroups(pid)
	if cgroups == o.self {
		return true
	}
	joined := false
	for _, id := range containerID.FindAllString(cgroups, -1) {
		if !o.own[id] && !o.also[id] {
			return false
		}
		joined = joined || o.own[id]
	}
	if joined {
		return true
	}
	var st unix.Stat_t
	return unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) == nil && int(st.Uid) == os.Geteuid()
}
