package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unmount takes away the root file system that Mount made in dir, or at other mount points, and what a crash in the middle of
// Mount may have left. It is idempotent, and never waits for those who still use the mount.
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
	r := remover{ctx: ctx}
	if err := r.remove(parent, filepath.Base(dir)); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// remover removes trees by descriptors, so that a path may be of any length. It goes down with a stack of its own and an
// open directory only for the one that it is in: a tree may be deeper than descriptors and stacks allow.
type remover struct {
	ctx   context.Context
	steps int
}

// listed is how many names are read at once: a directory of millions does not come into memory.
const listed = 512

func (r *remover) remove(parent int, name string) error {
	err := r.unlink(parent, name)
	if err == nil || !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	// Going down is openat; going up again is "..", checked against the inode that was there on the way down.
	top, err := openDir(parent, name)
	if err != nil {
		return err
	}
	at := top
	type level struct {
		name     string
		dev, ino uint64
	}
	var stack []level // the names below top of the directories that lead to at; dev and ino are each one's parent's
	defer func() { at.Close() }()
	for {
		down, err := r.empty(at)
		if err != nil {
			return err
		}
		if down != "" {
			var st unix.Stat_t
			if err := unix.Fstat(int(at.Fd()), &st); err != nil {
				return err
			}
			next, err := openDir(int(at.Fd()), down)
			if err != nil {
				return err
			}
			stack = append(stack, level{down, uint64(st.Dev), st.Ino})
			at.Close()
			at = next
			continue
		}
		if len(stack) == 0 {
			break
		}
		last := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		up, err := openDir(int(at.Fd()), "..")
		if err != nil {
			return err
		}
		at.Close()
		at = up
		var st unix.Stat_t
		if err := unix.Fstat(int(at.Fd()), &st); err != nil {
			return err
		}
		if uint64(st.Dev) != last.dev || st.Ino != last.ino {
			return errors.New("a directory was moved while it was being removed")
		}
		if err := r.unlink(int(at.Fd()), last.name); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return r.unlink(parent, name)
}

// empty removes what it can from a directory, and returns the name of one directory in it that is not empty.
func (r *remover) empty(dir *os.File) (string, error) {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
		names, err := dir.Readdirnames(listed)
		if errors.Is(err, io.EOF) || len(names) == 0 {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		for _, name := range names {
			err := r.unlink(int(dir.Fd()), name)
			if errors.Is(err, unix.ENOTEMPTY) {
				return name, nil
			}
			if err != nil {
				return "", err
			}
		}
	}
}

// unlink removes a file or an empty directory. What is gone already is removed.
func (r *remover) unlink(parent int, name string) error {
	if r.steps++; r.steps%64 == 0 {
		if err := r.ctx.Err(); err != nil {
			return err
		}
	}
	for attempt := 0; ; attempt++ {
		err := unix.Unlinkat(parent, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			// EPERM is what some file systems say of a directory, and what all say of an immutable file.
			if dirErr := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); !errors.Is(dirErr, unix.ENOTDIR) {
				err = dirErr
			}
		}
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EEXIST):
			return unix.ENOTEMPTY
		case errors.Is(err, unix.EPERM) && attempt == 0:
			// Either the entry or its directory carries the mark.
			clearMarks(parent, ".")
			clearMarks(parent, name)
			continue
		case errors.Is(err, unix.EBUSY):
			return fmt.Errorf("%s: something is mounted there: %w", name, err)
		case errors.Is(err, unix.ENOTEMPTY):
			return err
		}
		return fmt.Errorf("%s: %w", name, err)
	}
}

// Marks of FS_IOC_GETFLAGS, from linux/fs.h.
const (
	immutable  = 0x10
	appendOnly = 0x20
)

// clearMarks takes the immutable and append-only marks off a file or directory, where it has them.
func clearMarks(parent int, name string) {
	var st unix.Stat_t
	if unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return // opening a pipe or a device would do something; they cannot be marked on ext4 and xfs either
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || flags&(immutable|appendOnly) == 0 {
		return
	}
	_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^(immutable|appendOnly)))
}

// openDir opens a directory for reading, never one on another mount: with ".." the check does not hold back, since the
// way down has been checked.
func openDir(parent int, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	}
	for {
		fd, err := unix.Openat2(parent, name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EXDEV):
			return nil, fmt.Errorf("%s: something is mounted there: %w", name, unix.EBUSY)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
}
