// Package fdtable makes room for descriptors ahead of time. The kernel doubles the table of a process when it is full,
// first at 64 descriptors, and where the process has threads it waits for a grace period then, which takes 10 to 20 ms.
// On a node that fills with pods, one start in some dozen would wait for that, in berthd and in the keeper.
package fdtable

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Size is for the descriptors of some 500 containers. berthd and the keeper have eight for each. It takes 33 KiB of the
// kernel's memory.
const Size = 4096

// Reserve makes room for as many descriptors, or for as many as this process may have. It waits for the grace period:
// other threads open and close descriptors meanwhile.
func Reserve(count int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make room for descriptors: %w", err)
	}
	defer unix.Close(root)
	last := min(uint64(count), limit.Cur) - 1
	high, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, int(last))
	if err == unix.EMFILE {
		return nil // the last of those that it may have is in use, so there is room
	}
	if err != nil {
		return fmt.Errorf("make room for %d descriptors: %w", count, err)
	}
	return unix.Close(high)
}
