package quota

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/rootfs"
)

// From linux/fs.h.
const (
	getAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	inherit       = 0x200      // FS_XFLAG_PROJINHERIT
)

// attributes is struct fsxattr.
type attributes struct {
	flags   uint32
	_       [8]byte // extents
	project uint32
	_       [12]byte
}

func ioctl(fd int, what uintptr, a *attributes) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), what, uintptr(unsafe.Pointer(a))); errno != 0 {
		return errno
	}
	return nil
}

// Project is the ID of a directory; 0: none.
func Project(dir string) (uint32, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("project of %s: %w", dir, err)
	}
	defer unix.Close(fd)
	var a attributes
	if err := ioctl(fd, getAttributes, &a); err != nil {
		if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.ENOTSUP) {
			return 0, nil // a file system without
		}
		return 0, fmt.Errorf("project of %s: %w", dir, err)
	}
	return a.project, nil
}

// leaseWait is how long mark comes back to files of which a process holds a lease. The kernel takes a lease away 45 s
// after it was first asked to (fs.lease-break-time), and that of all files meanwhile.
const leaseWait = time.Minute

// mark gives a directory and all that is in it an ID, which new files in the directories inherit; ID 0 takes it away.
// With only, files that have another ID than that one keep it.
//
// Directories come before what they hold, so that nothing slips by that is made meanwhile. Devices, pipes, sockets
// and links have nothing to count and stay as they are: the kernel lets nobody mark them (before Linux 6.17).
//
// Processes of containers may hold leases of files (fcntl(2), F_SETLEASE). mark asks for all of them, marks what it
// can, and comes back to the rest.
func mark(ctx context.Context, dir string, id, only uint32) error {
	end := time.Now().Add(leaseWait)
	left, err := markOnce(ctx, dir, id, only, nil)
	for pause := 10 * time.Millisecond; err == nil && len(left) > 0; pause = min(2*pause, 5*time.Second) {
		if time.Until(end) < pause {
			err = fmt.Errorf("processes hold leases of %d files (F_SETLEASE): %w", len(left), errdefs.ErrUnavailable)
			break
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(pause):
			left, err = markOnce(ctx, dir, id, only, left)
		}
	}
	if err != nil {
		return fmt.Errorf("give project %d: %w", id, err)
	}
	return nil
}

// markOnce marks what it can, and returns the inodes of the files of which a process holds a lease. With some, it marks
// no others: a process may have taken a lease of a file that is marked already.
func markOnce(ctx context.Context, dir string, id, only uint32, some map[uint64]bool) (map[uint64]bool, error) {
	leased := map[uint64]bool{}
	err := rootfs.Walk(ctx, dir, func(parent int, name string, st *unix.Stat_t) error {
		kind := st.Mode & unix.S_IFMT
		if kind != unix.S_IFDIR && kind != unix.S_IFREG || some != nil && !some[st.Ino] {
			return nil
		}
		// In two steps, because the file may be another one by now, and opening a device does something.
		path, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(path)
		var now unix.Stat_t
		if err := unix.Fstat(path, &now); err != nil || now.Ino != st.Ino || now.Mode&unix.S_IFMT != kind {
			return err
		}
		fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		switch err {
		case nil:
		case unix.ENOENT:
			return nil
		case unix.EAGAIN:
			leased[st.Ino] = true
			return nil
		default:
			return err
		}
		defer unix.Close(fd)
		return markOpen(fd, kind == unix.S_IFDIR, id, only)
	})
	return leased, err
}

func markOpen(fd int, isDir bool, id, only uint32) error {
	var a attributes
	if err := ioctl(fd, getAttributes, &a); err != nil {
		return err
	}
	if only != 0 && a.project != only {
		return nil
	}
	a.project = id
	if isDir {
		a.flags |= inherit
		if id == 0 {
			a.flags &^= inherit
		}
	}
	return ioctl(fd, setAttributes, &a)
}
