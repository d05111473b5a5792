// Package timerslack lets the kernel end the sleeps of the keeper's threads half a millisecond late, and those of what
// the keeper starts as usual. berth/internal/timerslack says why. A constructor in C does it, before Go's runtime has
// threads, which inherit the slack.
//
// Containers must not inherit it. Commands of the keeper's own program, such as the init of libcontainer, set the
// kernel's default themselves, and a thread that does nothing but fork calls ThreadAsUsual. Around a fork of anything
// else, there is AsUsual.
package timerslack

// #cgo CFLAGS: -Wall -O2
import "C"

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// In nanoseconds; timerslack.c has the same.
const (
	keeperSlack = 500_000
	kernelSlack = 50_000
)

// AsUsual runs a function that forks, in its own goroutine. The child has the kernel's default slack, and has it also
// after prctl(PR_SET_TIMERSLACK, 0), which restores the slack that the forking thread had.
func AsUsual(fork func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// An error of these would be one of a kernel before Linux 2.6.28.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, kernelSlack, 0, 0, 0)
	err := fork()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, keeperSlack, 0, 0, 0)
	return err
}

// ThreadAsUsual gives the calling thread, to which the caller's goroutine is locked for good, the kernel's default. All
// that it forks inherit it.
func ThreadAsUsual() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, kernelSlack, 0, 0, 0) }
