package protocol

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Descriptors that a process leaves free for what it has begun: those of a container come from another process, and the
// kernel closes what finds no room. Less is left to execs, so that containers that are refused leave something to look
// at the others with.
const (
	RoomForContainer = 128
	RoomForExec      = 48
)

// Room is nil while this process may open so many descriptors more, and ErrResourceExhausted with the limit
// (RLIMIT_NOFILE) otherwise. Below a limit of 1024, which is what shells have, it is as many in proportion.
func Room(wanted int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	left := free(wanted, limit.Cur)
	open, err := openDescriptors()
	if err != nil {
		return err
	}
	if open+left > limit.Cur {
		return fmt.Errorf("%d of %d descriptors of process %d are in use (RLIMIT_NOFILE, LimitNOFILE of its unit): %w",
			open, limit.Cur, os.Getpid(), errdefs.ErrResourceExhausted)
	}
	return nil
}

func free(wanted int, limit uint64) uint64 { return uint64(wanted) * min(limit, 1024) / 1024 }

// Containers is how many a process with this limit can keep. Each has up to eight descriptors, and so has the init of a
// pod whose containers share a PID namespace.
func Containers(limit uint64) uint64 { return (limit - free(RoomForContainer, limit)) / 8 }

// openDescriptors counts this process's. Linux says it as the size of a directory since 6.2; before that the lowest
// free one is taken, which is exact as long as nothing below the highest one has been closed.
func openDescriptors() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/fd", &st); err == nil && st.Size > 0 {
		return uint64(st.Size), nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err == unix.EMFILE {
		return ^uint64(0) >> 1, nil
	}
	if err != nil {
		return 0, os.NewSyscallError("eventfd", err)
	}
	unix.Close(fd)
	return uint64(fd), nil
}
