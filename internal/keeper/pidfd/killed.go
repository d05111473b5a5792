package pidfd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// exiting is the flag of a thread that ends and never runs its program again (PF_EXITING of linux/sched.h), in the
// ninth field of proc_pid_stat(5).
const exiting = 0x4

// Killed says whether no thread of the process with this number will ever run its program again. The process has ended;
// or it was killed, and the kernel still waits for threads of it that are in system calls which no signal ends, such as
// a write to a disk that does not answer. All descriptors that the threads share stay open until the last one has
// ended.
//
// The first thread of a process that executes another program is a zombie for a moment too. Such a process is not
// killed: the thread that executes the program has no SIGKILL to come.
func Killed(pid int) bool {
	first, err := statFields(pid)
	if gone(err) {
		return true
	}
	if err != nil || len(first) == 0 || first[0] != "Z" && first[0] != "X" {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return gone(err)
	}
	for _, thread := range threads {
		if tid, err := strconv.Atoi(thread.Name()); err != nil || !ends(dir, tid) {
			return false
		}
	}
	return true
}

// gone says whether an error is that of a process or thread that does not exist.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// ends says whether a thread of a process has ended, is ending, or ends before it runs its program again.
func ends(dir string, tid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("%s/%d/stat", dir, tid))
	if err != nil {
		return gone(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	if fields[0] == "Z" || fields[0] == "X" || err == nil && flags&exiting != 0 {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("%s/%d/status", dir, tid))
	if err != nil {
		return gone(err)
	}
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "SigPnd:"); ok {
			pending, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && pending&(1<<(unix.SIGKILL-1)) != 0
		}
	}
	return false
}
