package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Usage is what a tree takes on its file system: bytes of allocated blocks and inodes, hard links counted once. It stays
// on the file system of dir and stops when ctx ends. Files that come and go while it counts are no error.
func Usage(ctx context.Context, dir string) (bytes, inodes uint64, err error) {
	links := map[uint64]struct{}{} // inodes with several links that were counted
	err = Walk(ctx, dir, func(_ int, _ string, st *unix.Stat_t) error {
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if _, seen := links[st.Ino]; seen {
				return nil
			}
			links[st.Ino] = struct{}{}
		}
		bytes += uint64(st.Blocks) * 512
		inodes++
		return nil
	})
	if err != nil {
		err = fmt.Errorf("measure: %w", err)
	}
	return bytes, inodes, err
}

// Walk visits dir and all that is in it on its file system, a directory before what it holds, and stops when ctx ends or visit
// fails. visit gets a name in an open directory; dir itself is "." in itself. Files that come and go meanwhile are no error, and
// links that are put in the place of directories are not followed: those in the tree may be anybody's.
func Walk(ctx context.Context, dir string, visit func(parent int, name string, st *unix.Stat_t) error) error {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "walk", Path: dir, Err: err}
	}
	defer unix.Close(root)
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return &fs.PathError{Op: "walk", Path: dir, Err: err}
	}
	w := walker{ctx: ctx, dev: uint64(st.Dev), visit: visit}
	if err := visit(root, ".", &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	// Directories that wait are kept by name, not open, so that neither width nor depth costs descriptors. A name is
	// relative to dir; one that was swapped for a link since is not followed.
	waiting := []string{"."}
	for len(waiting) > 0 {
		name := waiting[len(waiting)-1]
		waiting = waiting[:len(waiting)-1]
		if waiting, err = w.directory(root, name, waiting); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

type walker struct {
	ctx   context.Context
	dev   uint64
	visit func(parent int, name string, st *unix.Stat_t) error
	steps int
}

func (w *walker) directory(root int, name string, waiting []string) ([]string, error) {
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
			if w.steps++; w.steps%64 == 0 {
				if err := w.ctx.Err(); err != nil {
					return waiting, err
				}
			}
			var st unix.Stat_t
			if unix.Fstatat(fd, entry, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || uint64(st.Dev) != w.dev {
				continue
			}
			if err := w.visit(fd, entry, &st); err != nil {
				return waiting, fmt.Errorf("%s: %w", filepath.Join(name, entry), err)
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				waiting = append(waiting, filepath.Join(name, entry))
			}
		}
		if err != nil || len(entries) == 0 { // an error in the middle is a directory that was removed
			return waiting, nil
		}
	}
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
