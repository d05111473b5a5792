// Package procfs reads facts about processes from /proc.
package procfs

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// All lists the processes that this process can see.
func All() ([]int, error) {
	all, err := names("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range all {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Children lists the children of this process, zombies included.
func Children() []int {
	var pids []int
	listed := false
	const tasks = "/proc/self/task/"
	threads, _ := names(tasks)
	for _, thread := range threads {
		b, err := os.ReadFile(tasks + thread + "/children") // CONFIG_PROC_CHILDREN
		listed = listed || err == nil
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if listed {
		return pids
	}
	self := strconv.Itoa(os.Getpid())
	all, _ := All()
	for _, pid := range all {
		if f := Status(pid); len(f) > 1 && f[1] == self {
			pids = append(pids, pid)
		}
	}
	return pids
}

func names(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// Zombies lists the children of this process that have ended and have not been reaped, but for those in except.
func Zombies(except map[int]bool) []int {
	return slices.DeleteFunc(Children(), func(pid int) bool {
		if except[pid] {
			return true
		}
		f := Status(pid)
		return len(f) < 2 || f[0] != "Z"
	})
}

// Status returns the fields of /proc/PID/stat behind the process's name, see proc_pid_stat(5): its state is the first
// one, its parent the second, its process group the third, its session the fourth. It is nil for a process that is
// gone.
func Status(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

// Process returns the process that a thread belongs to; 0: it has ended.
func Process(thread int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(thread) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "Tgid:"); ok {
			pid, _ := strconv.Atoi(strings.TrimSpace(value))
			return pid
		}
	}
	return 0
}

// Namespace returns the name of the namespace of one kind that a process is in, such as cgroup:[4026531835]. It is
// empty for a process that has ended.
func Namespace(pid int, kind string) string {
	name, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/" + kind)
	if err != nil {
		return ""
	}
	return name
}

// maxCommandLine bounds what CommandLine returns, which the keeper writes into its records.
const maxCommandLine = 1 << 10

// CommandLine returns the first KiB of a process's arguments, each with a zero byte behind it. It is empty for a
// process that has ended, or has no arguments.
func CommandLine(pid int) string { return Arguments(pid, maxCommandLine) }

// Arguments is CommandLine with another limit, in bytes. There has to be one: a process chooses which part of its
// memory these are (PR_SET_MM_MAP), and without any privilege that may be gigabytes.
func Arguments(pid, limit int) string { return first(pid, "cmdline", limit) }

// Environment returns the first bytes of a process's environment, each variable with a zero byte behind it. What is
// said of Arguments holds for it too.
func Environment(pid, limit int) string { return first(pid, "environ", limit) }

// Cgroups returns the cgroups of a process as the kernel lists them, a line for each hierarchy.
func Cgroups(pid int) string { return first(pid, "cgroup", 64<<10) }

// first returns the first bytes of a file of a process.
func first(pid int, name string, limit int) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	if err != nil {
		return ""
	}
	return string(b)
}
