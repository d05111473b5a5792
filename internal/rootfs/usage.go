package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Usage is what a tree takes on its file system: bytes of allocated blocks and inodes, hard links counted once. It stays
// on the file system of dir and stops when ctx ends. Files that come and go while it counts are no error.
func Usage(ctx context.Context, dir string) (bytes, inodes uint64, err error) {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, &fs.PathError{Op: "measure", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		unix.Close(root)
		return 0, 0, &fs.PathError{Op: "measure", Path: dir, Err: err}
	}
	c := counter{ctx: ctx, dev: uint64(st.Dev), bytes: uint64(st.Blocks) * 512, inodes: 1}
	// Directories that wait are kept by name, not open, so that neither width nor depth costs descriptors. A name is
	// relative to dir; one that was swapped for a link since is not followed.
	waiting := []string{"."}
	defer unix.Close(root)
	for len(waiting) > 0 {
		name := waiting[len(waiting)-1]
		waiting = waiting[:len(waiting)-1]
		if waiting, err = c.directory(root, name, waiting); err != nil {
			return c.bytes, c.inodes, fmt.Errorf("measure %s: %w", dir, err)
		}
	}
	return c.bytes, c.inodes, nil
}

type counter struct {
	ctx           context.Context
	dev           uint64
	bytes, inodes uint64
	links         map[uint64]struct{} // inodes with several links that were counted
	steps         int
}

func (c *counter) directory(root int, name string, waiting []string) ([]string, error) {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOATIME,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.ENAMETOOLONG):
		return waiting, nil // deeper than a path can say; so deep a tree is only a lower bound
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return waiting, nil
	case err != nil:
		return waiting, fmt.Errorf("%s: %w", name, err)
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		entries, err := dir.Readdirnames(listed)
		for _, entry := range entries {
			if c.steps++; c.steps%64 == 0 {
				if err := c.ctx.Err(); err != nil {
					return waiting, err
				}
			}
			var st unix.Stat_t
			if unix.Fstatat(fd, entry, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || uint64(st.Dev) != c.dev {
				continue
			}
			isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
			if st.Nlink > 1 && !isDir {
				if _, seen := c.links[st.Ino]; seen {
					continue
				}
				if c.links == nil {
					c.links = map[uint64]struct{}{}
				}
				c.links[st.Ino] = struct{}{}
			}
			c.bytes += uint64(st.Blocks) * 512
			c.inodes++
			if isDir {
				waiting = append(waiting, filepath.Join(name, entry))
			}
		}
		if err != nil || len(entries) == 0 { // an error in the middle is a directory that was removed
			return waiting, nil
		}
	}
}

// Mounts are the mount points at and beneath root, the newest first, so that they can be unmounted in this order.
func Mounts(root string) ([]string, error) {
	root = filepath.Clean(root)
	found, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint != root && !strings.HasPrefix(m.Mountpoint, strings.TrimSuffix(root, "/")+"/"), false
	})
	if err != nil {
		return nil, fmt.Errorf("mounts beneath %s: %w", root, err)
	}
	points := make([]string, 0, len(found))
	for i := len(found) - 1; i >= 0; i-- {
		points = append(points, found[i].Mountpoint)
	}
	return points, nil
}
