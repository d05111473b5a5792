package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
)

// Unmount takes away the root file system that Mount made in dir, or at other mount points, and what a crash
// in the middle of Mount may have left. It is idempotent, and never waits for those who still use the mount.
func Unmount(dir string, at ...string) error {
	targets := append(at, Path(dir))
	if left, err := os.ReadDir(filepath.Join(dir, mappedDir)); err == nil {
		for _, entry := range left {
			targets = append(targets, filepath.Join(dir, mappedDir, entry.Name()))
		}
	}
	var errs []error
	for _, target := range targets {
		if err := detach(target); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", target, err))
		}
	}
	return errors.Join(errs...)
}

// detach unmounts all that is mounted at target, one over the other.
func detach(target string) error {
	for {
		switch err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); {
		case err == nil, errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return nil
		default:
			return err
		}
	}
}

// Remove unmounts the root file system in dir and removes the directory with everything in it. It is idempotent, stays
// on dir's own mount whatever is mounted below, follows no link, clears immutable and append-only marks, and stops when
// ctx ends; a later call goes on from there.
func Remove(ctx context.Context, dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
		return fmt.Errorf("remove %q: not a container's directory", dir)
	}
	if err := Unmount(dir); err != nil {
		return err
	}
	parent, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	defer unix.Close(parent)
	if err := dirtree.Remove(ctx, parent, filepath.Base(dir)); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
