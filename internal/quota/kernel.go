package quota

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// From linux/quota.h and linux/dqblk_xfs.h. ext4 answers the commands of XFS too.
const (
	projectQuota = 2 // PRJQUOTA

	setLimit  = 'X'<<8 + 4 // Q_XSETQLIM
	getQuota  = 'X'<<8 + 3 // Q_XGETQUOTA
	getStatus = 'X'<<8 + 5 // Q_XGETQSTAT

	fieldSoft, fieldHard = 1 << 2, 1 << 3 // FS_DQ_BSOFT, FS_DQ_BHARD
	projectFlag          = 1 << 1         // FS_PROJ_QUOTA
	accounted, enforced  = 1 << 4, 1 << 5 // FS_QUOTA_PDQ_ACCT, FS_QUOTA_PDQ_ENFD

	block = 512 // bytes; what limits and counts are in
)

// diskQuota is struct fs_disk_quota.
type diskQuota struct {
	version   int8
	flags     int8
	fields    uint16
	id        uint32
	hard      uint64
	soft      uint64
	inodeHard uint64
	inodeSoft uint64
	blocks    uint64
	inodes    uint64
	_         [56]byte // timers, warnings, real-time blocks
}

// status is struct fs_quota_stat, with room to spare.
type status struct {
	version int8
	_       int8
	flags   uint16
	_       [124]byte
}

// command runs a quotactl command on the file system of dir.
func command(dir string, what, id uint32, arg unsafe.Pointer) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	what = what<<8 | projectQuota
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(what), uintptr(id), uintptr(arg), 0, 0)
	if errno == unix.ENOSYS {
		// Either the file system has no quotas at all, or the kernel is older than 5.14 and wants a block device.
		errno = byDevice(int(f.Fd()), what, id, arg)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// byDevice makes a node for the device of a file system, since nothing says what its own is called.
func byDevice(fd int, what, id uint32, arg unsafe.Pointer) unix.Errno {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || unix.Major(uint64(st.Dev)) == 0 {
		return unix.ENOSYS
	}
	dir, err := os.MkdirTemp("", "berth-quota-")
	if err != nil {
		return unix.ENOSYS
	}
	defer os.RemoveAll(dir)
	node := filepath.Join(dir, "device")
	if unix.Mknod(node, unix.S_IFBLK|0o600, int(st.Dev)) != nil {
		return unix.ENOSYS
	}
	name, err := unix.BytePtrFromString(node)
	if err != nil {
		return unix.EINVAL
	}
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL, uintptr(what), uintptr(unsafe.Pointer(name)),
		uintptr(id), uintptr(arg), 0, 0)
	return errno
}

// existing is a path or the closest directory above it that exists.
func existing(path string) string {
	for path != "/" {
		if _, err := os.Lstat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// Check says whether the file system of a path, which need not exist yet, holds its project IDs to their limits.
// The error is ErrFailedPrecondition, names the file system and says what it is to be mounted with.
func Check(path string) error {
	at := existing(path)
	var s status
	s.version = 1
	err := command(at, getStatus, 0, unsafe.Pointer(&s))
	switch {
	case err == nil && s.flags&enforced != 0:
		return nil
	case err == nil, errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ESRCH),
		errors.Is(err, unix.ENOTSUP):
		return missing(at, s.flags&accounted != 0)
	}
	return fmt.Errorf("ask for the project quotas of %s: %w", at, err)
}

func missing(at string, counted bool) error {
	kind, point := "the file system", at
	if real, err := filepath.EvalSymlinks(at); err == nil {
		if found, err := mountinfo.GetMounts(mountinfo.ParentsFilter(real)); err == nil {
			for _, m := range found {
				if kind == "the file system" || len(m.Mountpoint) >= len(point) {
					kind, point = m.FSType, m.Mountpoint
				}
			}
		}
	}
	var do string
	switch {
	case kind == "ext4" && counted, kind == "xfs":
		do = "mount it with the option prjquota"
	case kind == "ext4":
		do = "unmount it, give it the features with tune2fs -O project,quota -Q prjquota, " +
			"and mount it with the option prjquota " +
			"(the kernel needs its module quota_v2)"
	default:
		do = "project quotas need ext4 or xfs, mounted with the option prjquota"
	}
	return fmt.Errorf("%s on %s has no project quotas: %s: %w", kind, point, do, errdefs.ErrFailedPrecondition)
}

// limit sets how many bytes an ID may take on the file system of a path; 0: as many as there are. It waits where the
// file system is frozen, or its disk does not answer, for as long as that lasts. It is a variable for tests.
var limit = func(path string, id uint32, bytes uint64) error {
	q := diskQuota{version: 1, flags: projectFlag, fields: fieldHard | fieldSoft, id: id, hard: bytes / block}
	if err := command(existing(path), setLimit, id, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit project %d on the file system of %s: %w", id, path, err)
	}
	return nil
}

// Usage is what an ID takes on a file system.
type Usage struct {
	Bytes, Inodes, Limit uint64
}

// Read reads the usage of an ID on the file system of a path.
func Read(path string, id uint32) (Usage, error) {
	q := diskQuota{version: 1}
	err := command(existing(path), getQuota, id, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return Usage{}, nil // xfs keeps nothing of an ID that nobody has used
	}
	if err != nil {
		return Usage{}, fmt.Errorf("read project %d on the file system of %s: %w", id, path, err)
	}
	return Usage{Bytes: q.blocks * block, Inodes: q.inodes, Limit: q.hard * block}, nil
}
