package stage

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// PrepareSetups makes what Begin needs: a mount namespace with nothing in it, of which each container's is a copy. It is an error
// where the kernel lacks mount_setattr(2) with all that a mount can be told (MOUNT_ATTR_NOSYMFOLLOW, Linux 5.14). dir is an
// existing directory; nothing shows there.
func (p *Program) PrepareSetups(dir string) error {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_NOSYMFOLLOW})
	if err != unix.EBADF { // the descriptor is the only thing that is wrong with it
		return fmt.Errorf("a set-up needs Linux 5.14: mount_setattr: %w", err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		f, err := emptyMounts(dir)
		p.mounts = f
		done <- err
	}()
	return <-done
}

// emptyMounts moves this thread into a mount namespace of its own and leaves nothing there but an empty, read-only directory.
func emptyMounts(dir string) (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	f, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"part from the host's mounts", func() error { return unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "") }},
		{"mount an empty directory", func() error {
			return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "nr_inodes=1,size=4k")
		}},
		{"enter it", func() error { return unix.Chdir(dir) }},
		{"make it the root", func() error { return unix.PivotRoot(".", ".") }},
		{"remove the host's mounts", func() error { return unix.Unmount(".", unix.MNT_DETACH) }},
	} {
		if err := step.do(); err != nil {
			f.Close()
			return nil, fmt.Errorf("make an empty mount namespace: %s: %w", step.name, err)
		}
	}
	return f, nil
}
