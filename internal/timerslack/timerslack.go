// Package timerslack lets the kernel end the sleeps of berthd's threads half a millisecond late. It has to be imported
// for its effect, by a program without C; the keeper has berth/internal/keeper/timerslack.
//
// As long as a Go program works, a thread of Go's runtime (sysmon) wakes up after each 20 µs of sleep, to which the
// kernel by default adds up to 50 µs. On a node where berthd works for some milliseconds at a time, and seldom, this
// takes a tenth of all processor time of a pod's start. With more slack, the thread wakes up 30 times as seldom. All
// that depends on it is how soon Go notices that a system call takes long. Go's own timers fire up to half a
// millisecond late.
//
// A thread inherits its slack from the thread that makes it, and a thread cannot change another's without CAP_SYS_NICE,
// which berthd does not have. So the slack has to be there before Go's runtime makes its threads: the program sets it,
// and executes itself again. What berthd starts inherits the slack. These processes are berthd's own, CNI plugins and
// credential helpers, but never those of containers.
package timerslack

import (
	"os"
	"slices"
	"strings"
	"syscall"
)

// slack is in nanoseconds.
const slack = 500_000

// again is in the environment of a program that has been executed again, so that this happens once.
const again = "BERTH_TIMER_SLACK_SET"

// An init, and one that needs nothing but the standard library: it runs before those of other packages, which take most
// of the time until a program's main.
func init() {
	if os.Getenv(again) != "" {
		os.Unsetenv(again)
		return
	}
	if now, ok := prctl(syscall.PR_GET_TIMERSLACK, 0); !ok || now >= slack {
		return // an ancestor has set it
	}
	// The path, since the process would be called exe if /proc/self/exe were executed.
	self, err := os.Readlink("/proc/self/exe")
	if err != nil || strings.HasSuffix(self, " (deleted)") {
		return
	}
	if _, ok := prctl(syscall.PR_SET_TIMERSLACK, slack); !ok {
		return
	}
	// It returns only if it fails. berthd goes on then, and takes more time for its work.
	_ = syscall.Exec(self, os.Args, append(slices.Clip(os.Environ()), again+"=1"))
}

func prctl(option int, value uintptr) (result uintptr, ok bool) {
	result, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, uintptr(option), value, 0)
	return result, errno == 0
}
