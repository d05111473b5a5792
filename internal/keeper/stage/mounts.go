package stage

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"berth/internal/namespace"
)

// PrepareSetups makes what Begin needs: a mount namespace with nothing in it, of which each container's is a copy.
// It is an error where the kernel lacks mount_setattr(2) with all that a mount can be told (MOUNT_ATTR_NOSYMFOLLOW,
// Linux 5.14). dir is an existing directory; nothing shows there.
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

// emptyMounts moves this thread into a mount namespace of its own and leaves nothing there but an empty,
// read-only directory.
func emptyMounts(dir string) (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	f, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, err
	}
	if err := namespace.Empty(dir, "nr_inodes=1,size=4k", nil); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
