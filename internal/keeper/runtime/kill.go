package runtime

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/procfs"
)

const (
	// killPause is how long KillMatching waits before it looks for processes again.
	killPause = 10 * time.Millisecond
	// maxArguments is how many bytes of a process's arguments KillMatching looks at: the flags of a runtime come first.
	maxArguments = 64 << 10
)

// KillMatching kills the processes of the node whose arguments match (each with a zero byte behind it) and that can be
// calls of a runtime for the containers in of (IDs, or cgroup paths that have them), but never this one, until none is
// found. One that is found may have started another one before it is killed, and a killed one takes a moment to end.
// KillMatching returns false if some are still found after limit. Until then it also waits for processes that may be
// executing a call and cannot be told yet.
func KillMatching(limit time.Duration, of []string, match func(arguments string) bool) (ended bool, err error) {
	o := originOf(of)
	wanted := func(pid int) bool { return match(memory.arguments(pid, maxArguments)) && o.runtime(pid) }
	for deadline := time.Now().Add(limit); ; time.Sleep(killPause) {
		over := time.Now().After(deadline) // before the look: the machine may stand still during it
		pids, err := procfs.All()
		if err != nil {
			return false, err
		}
		killed, unread := false, false
		for _, pid := range pids {
			if pid == os.Getpid() {
				continue
			}
			if line := memory.arguments(pid, maxArguments); match(line) {
				killed = o.runtime(pid) && kill(pid, wanted) || killed
			} else {
				unread = unread || o.executes(pid, line)
			}
		}
		if !killed && !unread {
			return true, nil
		}
		if over {
			return !killed, nil
		}
	}
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
	line string          // the keeper's own arguments
	own  map[string]bool // the IDs of the containers that the calls are for
	also map[string]bool // IDs in the keeper's own cgroups, where it runs in a container itself
}

func originOf(of []string) origin {
	o := origin{self: procfs.Cgroups(os.Getpid()), line: procfs.Arguments(os.Getpid(), maxArguments),
		own: map[string]bool{}, also: map[string]bool{}}
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

// executes tells whether a process with these arguments may be about to execute a runtime's call. There are two moments
// at which its arguments do not say so. Inside of execve(2) it has none for a while; kernel threads and zombies, which
// have none either, have no program. Before that it has those of the keeper that has created it (vfork(2)), and if that
// keeper was killed, it goes on. A keeper that lives waits for such a process of its own, and has several threads.
func (o origin) executes(pid int, line string) bool {
	switch line {
	case "":
		_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err == nil && o.runtime(pid)
	case o.line:
		f := procfs.Status(pid)
		if len(f) < 18 || f[17] != "1" || procfs.Cgroups(pid) != o.self {
			return false
		}
		parent, err := strconv.Atoi(f[1])
		return err == nil && parent != os.Getpid() && memory.arguments(parent, maxArguments) != o.line
	}
	return false
}
