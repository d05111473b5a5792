package rootfs

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
)

// Usage is what a tree takes on its file system: bytes of allocated blocks and inodes. Each name of a file counts for
// its part of it, so a file with two hard links in the tree counts once, and one that has its other link elsewhere by
// half: to remember the files takes memory for as many as a container makes. It stays on the file system of dir and
// stops when ctx ends; with an error it returns what it has counted by then. Files that come and go while it counts are
// no error.
func Usage(ctx context.Context, dir string) (bytes, inodes uint64, err error) {
	var linkedBytes, linkedInodes float64 // of files with several links
	err = Walk(ctx, dir, func(_ int, _ string, st *unix.Stat_t) error {
		size := uint64(st.Blocks) * 512
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			linkedBytes += float64(size) / float64(st.Nlink)
			linkedInodes += 1 / float64(st.Nlink)
			return nil
		}
		bytes += size
		inodes++
		return nil
	})
	if err != nil {
		err = fmt.Errorf("measure: %w", err)
	}
	return bytes + uint64(math.Round(linkedBytes)), inodes + uint64(math.Round(linkedInodes)), err
}

// Walk visits dir and all that is in it on its file system, a directory before what it holds,
// and stops when ctx ends or visit fails. visit gets a name in an open directory; dir itself is "." in itself.
// Files that come and go meanwhile are no error, and links that are put in the place of directories are not followed:
// those in the tree may be anybody's.
func Walk(ctx context.Context, dir string, visit func(parent int, name string, st *unix.Stat_t) error) error {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("walk: %w", err)
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return &fs.PathError{Op: "walk", Path: dir, Err: err}
	}
	dev := st.Dev
	if err := visit(int(root.Fd()), ".", &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	tree := dirtree.New[struct{}](root)
	tree.Flags = unix.O_NOATIME
	defer tree.Close()
	err = tree.Walk(ctx, dirtree.Walk[struct{}]{
		Changing: true,
		Visit: func(in *dirtree.Dir[struct{}], fd int, name string, st *unix.Stat_t) (*dirtree.Dir[struct{}], error) {
			if st.Dev != dev {
				return nil, nil
			}
			if err := visit(fd, name, st); err != nil {
				return nil, fmt.Errorf("%s: %w", in.PathOf(name), err)
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return nil, nil
			}
			return in.Below(name), nil
		},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// Mounts are the mount points at and beneath the roots, the newest first, so that they can be unmounted in this order.
func Mounts(roots ...string) ([]string, error) {
	found, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !slices.ContainsFunc(roots, func(root string) bool {
			root = filepath.Clean(root)
			return m.Mountpoint == root || strings.HasPrefix(m.Mountpoint, strings.TrimSuffix(root, "/")+"/")
		}), false
	})
	if err != nil {
		return nil, fmt.Errorf("mounts beneath %s: %w", strings.Join(roots, " and "), err)
	}
	points := make([]string, 0, len(found))
	for i := len(found) - 1; i >= 0; i-- {
		points = append(points, found[i].Mountpoint)
	}
	return points, nil
}
