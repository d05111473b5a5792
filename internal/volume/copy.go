package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/fileattr"
)

// Fill says what a new volume begins with.
type Fill struct {
	// Source finds the directory that is copied, with owners, modes, extended attributes, times and links as they are. It is
	// called only where there is something to fill. Nil, or an empty path: the volume begins empty and has the owner below.
	Source   func(context.Context) (string, error)
	UID, GID int
	// Prepare, if set, is called with the volume's directory while nothing is in it.
	Prepare func(dir string) error
}

// Populate makes dir, which must not exist, with what f says. After an error dir may be there in part.
func Populate(ctx context.Context, dir string, f Fill) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := errors.Join(os.Chown(dir, f.UID, f.GID), os.Chmod(dir, 0o755)); err != nil { // the umask may have taken something
		return err
	}
	if f.Prepare != nil {
		if err := f.Prepare(dir); err != nil {
			return err
		}
	}
	source, err := f.source(ctx)
	if err != nil || source == "" {
		return err
	}
	c := copier{ctx: ctx, links: map[inode]string{}}
	if err := c.directory(source, dir); err != nil {
		return fmt.Errorf("copy %s: %w", source, err)
	}
	return nil
}

func (f Fill) source(ctx context.Context) (string, error) {
	if f.Source == nil {
		return "", nil
	}
	return f.Source(ctx)
}

type inode struct{ dev, ino uint64 }

// copier copies a tree that nobody else changes into one that nobody else sees.
type copier struct {
	ctx   context.Context
	links map[inode]string // where files with several links have been copied to
}

func (c *copier) directory(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(512)
		for _, name := range names {
			if err := c.entry(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := fileattr.Copy(from, to); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: from, Err: err}
	}
	return times(to, &st) // last: each entry has changed them
}

func (c *copier) entry(from, to string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: from, Err: err}
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFDIR {
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		return c.directory(from, to)
	}
	if st.Nlink > 1 {
		if first, copied := c.links[inode{uint64(st.Dev), st.Ino}]; copied {
			return os.Link(first, to)
		}
		c.links[inode{uint64(st.Dev), st.Ino}] = to
	}
	var err error
	switch kind {
	case unix.S_IFREG:
		err = c.file(from, to)
	case unix.S_IFLNK:
		var target string
		if target, err = os.Readlink(from); err == nil {
			err = os.Symlink(target, to)
		}
	default:
		if err = unix.Mknod(to, st.Mode, int(st.Rdev)); err != nil {
			err = &os.PathError{Op: "mknod", Path: to, Err: err}
		}
	}
	if err != nil {
		return err
	}
	if err := fileattr.Copy(from, to); err != nil {
		return err
	}
	return times(to, &st)
}

// piece is how much is copied before anybody asks whether it is still wanted.
const piece = 64 << 20

func (c *copier) file(from, to string) error {
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for err == nil {
		if err = c.ctx.Err(); err == nil {
			_, err = io.CopyN(out, in, piece) // the kernel copies, where it can
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, out.Close())
}

func times(path string, st *unix.Stat_t) error {
	err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return &os.PathError{Op: "set times", Path: path, Err: err}
	}
	return nil
}
