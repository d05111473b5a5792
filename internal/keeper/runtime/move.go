package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/cgroup/nested"
	"berth/internal/keeper/cgroupdir"
	"berth/internal/keeper/procfs"
)

// ExecMark is an environment variable, with the ID of an exec as its value, that finds what an exec has started.
const ExecMark = "BERTH_EXEC="

// WithMark returns an environment with the mark of an exec.
func WithMark(env []string, execID string) []string {
	return append(slices.Clone(env), ExecMark+execID)
}

const (
	// maxEnvironment is how many bytes of a process's environment are looked at. What execve takes is shorter.
	maxEnvironment = 8 << 20
	// moveWait bounds how long MoveExec and KillStarted wait for processes that are executing a program.
	moveWait = 300 * time.Millisecond
	movePoll = time.Millisecond
)

// MoveExec puts a process of an exec, and all that it has started by now, into a cgroup. paths are the container's. It
// is for execs that cannot be started in their cgroup. The process has ExecMark in its environment, since what leaves
// its parents before it is moved is found by nothing else.
func MoveExec(pid int, paths map[string]string, dir, execID string) {
	if pid <= 0 {
		return
	}
	for deadline := time.Now().Add(moveWait); ; {
		over := time.Now().After(deadline) // before the look: the machine may stand still during it
		moved := 0
		found, unread := marked(paths, execID)
		for _, p := range append(cgroupdir.Family(pid, paths), found...) {
			if !inCgroup(dir, p) && cgroupdir.Has(paths, p) &&
				cgroupdir.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(p)) == nil {
				moved++
			}
		}
		switch {
		case moved > 0:
		case unread && !over:
			time.Sleep(movePoll)
		default:
			return
		}
	}
}

// memory reads what the kernel finds in the memory of a process. A test replaces it.
var memory = struct{ environment, arguments func(pid, limit int) string }{procfs.Environment, procfs.Arguments}

// marked are the processes of a container with an exec's mark in their environment. unread: some process has neither an
// environment nor arguments. It may be executing a program at this moment, and have them when it has.
func marked(paths map[string]string, execID string) (found []int, unread bool) {
	pids, err := nested.Processes(cgroupdir.Members(paths))
	if err != nil {
		return nil, false
	}
	for _, p := range pids {
		switch environment := memory.environment(p, maxEnvironment); {
		case strings.Contains("\x00"+environment, "\x00"+ExecMark+execID+"\x00"):
			found = append(found, p)
		case environment == "":
			unread = unread || executes(p)
		}
	}
	return found, unread
}

// executes says whether a process may be executing a program at this moment (execve(2)): it has no arguments yet, and
// is no zombie, which never has any.
func executes(pid int) bool {
	if memory.arguments(pid, 1) != "" {
		return false
	}
	f := procfs.Status(pid)
	return len(f) > 0 && f[0] != "Z" && f[0] != "X"
}

func inCgroup(dir string, pid int) bool {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if strings.TrimSpace(line) == strconv.Itoa(pid) {
			return true
		}
	}
	return false
}
