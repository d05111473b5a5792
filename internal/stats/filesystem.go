package stats

import (
	"fmt"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Filesystem is the file system that a directory is on.
type Filesystem struct {
	Device             string // /dev/sda1, or what else is mounted: tmpfs
	Bytes              uint64
	Inodes, InodesFree uint64
}

// StatFilesystem reads the file system of a directory.
func StatFilesystem(dir string) (*Filesystem, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, fmt.Errorf("file system of %s: %w", dir, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, fmt.Errorf("file system of %s: %w", dir, err)
	}
	out := &Filesystem{Bytes: fs.Blocks * uint64(fs.Bsize), Inodes: fs.Files, InodesFree: fs.Ffree}
	major, minor := unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev))
	if out.Device = DeviceName(strconv.Itoa(int(major)), strconv.Itoa(int(minor))); out.Device != "" {
		return out, nil
	}
	// No block device: btrfs, tmpfs, a network file system. The table of mounts names what was mounted.
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		found := m.Major == int(major) && m.Minor == int(minor)
		return !found, found
	})
	if err == nil && len(mounts) > 0 {
		out.Device = mounts[0].Source
	}
	return out, nil
}
