package dirtree

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Walk is how a tree is walked. A directory's entries are read some hundreds at a time; what waits to be walked
// is in memory, in the directory's part only.
type Walk[T any] struct {
	// Visit is called with each entry of an open directory; its attributes are the entry's own, not those of what a link
	// leads to. The descriptor is Visit's to use until it returns. For an entry that is to be walked it returns
	// the directory, made by Below or Add. A directory is visited before what it holds.
	Visit func(in *Dir[T], fd int, name string, st *unix.Stat_t) (*Dir[T], error)
	// Leave, if set, is called with each directory after all that it holds, the root's last.
	Leave func(d *Dir[T]) error
	// Changing: others change the tree meanwhile. What is gone when its turn comes is no error, and neither
	// is what another file, a link or a mount has taken the place of.
	Changing bool
	// NamesOnly: Visit needs no attributes, and gets none.
	NamesOnly bool
}

// level is a directory on the way to the one that is being read.
type level[T any] struct {
	dir    *Dir[T]
	offset int64     // where reading it goes on
	subs   []*Dir[T] // of those that were read, what is still to be walked
	end    bool
}

// Walk walks the whole tree, and stops when ctx ends or a function fails.
func (t *Tree[T]) Walk(ctx context.Context, w Walk[T]) error {
	buf := make([]byte, 16<<10)
	stack := []level[T]{{dir: t.Root()}}
	for len(stack) > 0 {
		at := &stack[len(stack)-1]
		if len(at.subs) > 0 {
			next := at.subs[0]
			at.subs = at.subs[1:]
			stack = append(stack, level[T]{dir: next})
			continue
		}
		if !at.end {
			err := t.read(ctx, &w, at, buf)
			if err != nil && w.Changing && isChange(err) {
				err, at.end = nil, true
			}
			if err != nil {
				return err
			}
			continue
		}
		if w.Leave != nil {
			if err := w.Leave(at.dir); err != nil {
				return err
			}
		}
		if up := at.dir.parent; up != nil {
			// From here it is one step, and the rest of what is above is to be read.
			if _, err := t.FD(up); err != nil && !(w.Changing && isChange(err)) {
				return err
			}
		}
		t.Forget(at.dir)
		stack = stack[:len(stack)-1]
	}
	return nil
}

// read reads and visits the next part of a directory.
func (t *Tree[T]) read(ctx context.Context, w *Walk[T], at *level[T], buf []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fd, err := t.FD(at.dir)
	if err != nil {
		return err
	}
	n, err := list(fd, at.offset, buf)
	if err == nil && n > 0 {
		at.offset, err = unix.Seek(fd, 0, unix.SEEK_CUR)
	}
	if err != nil {
		return fmt.Errorf("read directory %q: %w", at.dir.Path(), err)
	}
	at.end = n == 0
	_, _, names := unix.ParseDirent(buf[:n], -1, nil)
	at.subs = at.subs[:0]
	for _, name := range names {
		// Visit may have opened others, for which this one was closed.
		if fd, err = t.FD(at.dir); err != nil {
			return err
		}
		var st *unix.Stat_t
		if !w.NamesOnly {
			st = &unix.Stat_t{}
			if err := unix.Fstatat(fd, name, st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				if w.Changing && isChange(err) {
					continue
				}
				return fmt.Errorf("look up %q: %w", at.dir.PathOf(name), err)
			}
		}
		sub, err := w.Visit(at.dir, fd, name, st)
		if err != nil {
			return err
		}
		if sub != nil {
			at.subs = append(at.subs, sub)
		}
	}
	return nil
}

// Names calls fn with each name in an open directory, some hundreds in memory at a time.
func Names(fd int, fn func(name string) error) error {
	buf := make([]byte, 16<<10)
	for offset := int64(0); ; {
		n, err := list(fd, offset, buf)
		if err != nil || n == 0 {
			return err
		}
		if offset, err = unix.Seek(fd, 0, unix.SEEK_CUR); err != nil {
			return err
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if err := fn(name); err != nil {
				return err
			}
		}
	}
}

func list(fd int, offset int64, buf []byte) (int, error) {
	if _, err := unix.Seek(fd, offset, unix.SEEK_SET); err != nil {
		return 0, err
	}
	for {
		n, err := unix.ReadDirent(fd, buf)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// isChange tells whether an error is that of a file that has been removed, moved or replaced since its name was read.
func isChange(err error) bool {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.ESTALE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
