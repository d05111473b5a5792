package dirtree

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Remove removes what stands under a name in an open directory, with all that is in it. It stays on the mount
// of what it removes, whatever is mounted below, follows no link, clears immutable and append-only marks, and stops
// when ctx ends; a later call goes on from there. What is not there is removed.
func Remove(ctx context.Context, parent int, name string) error {
	r := remover{ctx: ctx}
	return r.remove(parent, name)
}

type remover struct {
	ctx     context.Context
	steps   int
	removed int
}

func (r *remover) remove(parent int, name string) error {
	err := r.unlink(parent, name)
	if err == nil || !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	fd, err := openDir(parent, name, 0)
	if err != nil {
		return fmt.Errorf("open directory %q: %w", name, err)
	}
	root := os.NewFile(uintptr(fd), name)
	defer root.Close()
	tree := New[struct{}](root)
	defer tree.Close()
	// Some file systems lose their place in a directory that is being emptied: what was passed over is met the next time.
	for {
		r.removed = 0
		if err := r.empty(tree); err != nil {
			return err
		}
		err := r.unlink(parent, name)
		if err == nil || !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		if r.removed == 0 {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// empty removes all in a tree that it meets.
func (r *remover) empty(tree *Tree[struct{}]) error {
	return tree.Walk(r.ctx, Walk[struct{}]{
		Changing:  true,
		NamesOnly: true,
		Visit: func(in *Dir[struct{}], fd int, name string, _ *unix.Stat_t) (*Dir[struct{}], error) {
			err := r.unlink(fd, name)
			if errors.Is(err, unix.ENOTEMPTY) {
				return in.Below(name), nil
			}
			return nil, err
		},
		Leave: func(d *Dir[struct{}]) error {
			if d.Parent() == nil {
				return nil
			}
			fd, err := tree.FD(d.Parent())
			if err == nil {
				err = r.unlink(fd, d.Name())
			}
			if errors.Is(err, unix.ENOTEMPTY) || isChange(err) {
				return nil
			}
			return err
		},
	})
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
			r.removed++
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
