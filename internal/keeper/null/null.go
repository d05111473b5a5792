package null

import (
	"os"
	"sync"

	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
)

// Device is the number of the null device.
var Device = unix.Mkdev(1, 3)

// nodes is where the nodes are made: /dev of a file system in memory that is mounted nowhere, and that goes
// with this process.
var nodes struct {
	sync.Mutex
	dir int // 0: there is none yet
}

// Open opens a null device of its own: no other process has a descriptor of its node, and no path leads there.
// A file system for each node would take twenty times as long.
func Open() (*os.File, error) {
	nodes.Lock()
	defer nodes.Unlock()
	if nodes.dir == 0 {
		dir, err := mount()
		if err != nil {
			return nil, err
		}
		nodes.dir = dir
	}
	// A process that lists its descriptors finds it as /dev/null.
	const name = "null"
	if err := unix.Mknodat(nodes.dir, name, unix.S_IFCHR|0o666, int(Device)); err != nil {
		return nil, os.NewSyscallError("mknodat", err)
	}
	fd, err := unix.Openat(nodes.dir, name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if uerr := unix.Unlinkat(nodes.dir, name, 0); err == nil && uerr != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("unlinkat", uerr)
	}
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), "/dev/null")
	if err := dress(fd); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// dress gives a node the mode and the SELinux label of the host's.
func dress(fd int) error {
	// The umask of this process has taken bits away.
	if err := unix.Fchmod(fd, 0o666); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	if !selinux.GetEnabled() {
		return nil
	}
	label, err := selinux.FileLabel(os.DevNull)
	if err != nil || label == "" {
		return err
	}
	return os.NewSyscallError("fsetxattr", unix.Fsetxattr(fd, "security.selinux", append([]byte(label), 0), 0))
}

func mount() (dir int, err error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return 0, os.NewSyscallError("fsconfig", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(root)
	if err := unix.Mkdirat(root, "dev", 0o700); err != nil {
		return 0, os.NewSyscallError("mkdirat", err)
	}
	dir, err = unix.Openat(root, "dev", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	return dir, os.NewSyscallError("openat", err)
}
