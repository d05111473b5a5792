package watch

import (
	"golang.org/x/sys/unix"
)

// mounts tells whether the mounts that this process sees have changed. nil does not know, and says yes.
type mounts struct{ fd int }

func openMounts() (*mounts, error) {
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &mounts{fd}, nil
}

// changed says whether anything was mounted, moved or unmounted since the last call, or since this was opened: see
// proc_pid_mountinfo(5), and POLLERR in it.
func (m *mounts) changed() bool {
	if m == nil {
		return true
	}
	poll := []unix.PollFd{{Fd: int32(m.fd), Events: unix.POLLPRI}}
	for {
		_, err := unix.Poll(poll, 0)
		if err != unix.EINTR {
			return err != nil || poll[0].Revents&(unix.POLLERR|unix.POLLPRI) != 0
		}
	}
}

func (m *mounts) close() {
	if m != nil {
		unix.Close(m.fd)
	}
}
