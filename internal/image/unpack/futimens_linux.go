package unpack

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetTimes sets access and modification time of an open file. A null path makes utimensat work on the descriptor, which
// golang.org/x/sys has no call for.
func SetTimes(fd int, times *[2]unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
