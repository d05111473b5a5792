package volume

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
	"berth/internal/fileattr"
	"berth/internal/sparse"
)

// Fill says what a new volume begins with.
type Fill struct {
	// Source opens the directory that is copied, with owners, modes, extended attributes, times and links as they are. It
	// is called only where there is something to fill. Nil, or no file: the volume begins empty and has the owner below.
	Source   func(context.Context) (*os.File, error)
	UID, GID int
	// Prepare, if set, is called with the volume's directory while nothing is in it.
	Prepare func(dir string) error
}

// Populate makes dir, which must not exist, with what f says. After an error dir may be there in part.
func Populate(ctx context.Context, dir string, f Fill) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	// the umask may have taken something
	if err := errors.Join(os.Chown(dir, f.UID, f.GID), os.Chmod(dir, 0o755)); err != nil {
		return err
	}
	if f.Prepare != nil {
		if err := f.Prepare(dir); err != nil {
			return err
		}
	}
	source, err := f.source(ctx)
	if err != nil || source == nil {
		return err
	}
	defer source.Close()
	to, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	c := copier{ctx: ctx, from: dirtree.New[*outDir](source), to: dirtree.New[struct{}](to)}
	c.links.Spend = c.remember
	defer c.from.Close()
	defer c.to.Close()
	if err := c.copy(); err != nil {
		return fmt.Errorf("copy %s: %w", source.Name(), err)
	}
	return nil
}

func (f Fill) source(ctx context.Context) (*os.File, error) {
	if f.Source == nil {
		return nil, nil
	}
	return f.Source(ctx)
}

type (
	outDir = dirtree.Dir[struct{}]
	inDir  = dirtree.Dir[*outDir]
)

// mostLinks bounds the memory for files with several names. The limits of an image allow ten million of them, which
// would take more than a gigabyte. Tests lower it.
var mostLinks = 64 << 20

// copier copies a tree into one that nobody else sees. What is copied comes from images, and is reached by descriptors
// alone: a link in it is copied and never followed, also where it takes the place of something else meanwhile.
type copier struct {
	ctx   context.Context
	from  *dirtree.Tree[*outDir] // each directory with its copy
	to    *dirtree.Tree[struct{}]
	links dirtree.Links[struct{}] // where files with several names have been copied to
	kept  int                     // bytes of memory for links
}

func (c *copier) remember(bytes int) error {
	if c.kept += bytes; c.kept > mostLinks {
		return fmt.Errorf("the files with several names take more than %d bytes of memory: %w", mostLinks,
			errdefs.ErrResourceExhausted)
	}
	return nil
}

func (c *copier) copy() error {
	c.from.Root().Data = c.to.Root()
	return c.from.Walk(c.ctx, dirtree.Walk[*outDir]{
		Visit: func(in *inDir, from int, name string, st *unix.Stat_t) (*inDir, error) {
			to, err := c.to.FD(in.Data)
			if err != nil {
				return nil, err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				err = c.entry(in.Data, from, to, name, st)
			} else if err = unix.Mkdirat(to, name, 0o700); err == nil {
				d := in.Below(name)
				d.Data = in.Data.Below(name)
				return d, nil
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", in.PathOf(name), err)
			}
			return nil, nil
		},
		Leave: func(d *inDir) error {
			if err := c.dress(d); err != nil {
				return fmt.Errorf("%s: %w", d.Path(), err)
			}
			return nil
		},
	})
}

// dress gives a copy of a directory its attributes and times, after each entry has changed them.
func (c *copier) dress(d *inDir) error {
	from, err := c.from.FD(d)
	if err != nil {
		return err
	}
	to, err := c.to.FD(d.Data)
	if err != nil {
		return err
	}
	a, err := fileattr.Of(from)
	if err != nil {
		return err
	}
	if err := a.Apply(to); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	return times(to, ".", &st)
}

func (c *copier) entry(in *outDir, from, to int, name string, st *unix.Stat_t) error {
	first, firstName, err := c.links.First(in, name, st)
	if err != nil {
		return err
	}
	if first != nil {
		at, err := c.to.FD(first)
		if err != nil {
			return err
		}
		return unix.Linkat(at, firstName, to, name, 0)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = c.file(from, to, name)
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		var n int
		if n, err = unix.Readlinkat(from, name, buf); err == nil {
			err = unix.Symlinkat(string(buf[:n]), to, name)
		}
	default:
		if err = unix.Mknodat(to, name, st.Mode, int(st.Rdev)); err != nil {
			err = fmt.Errorf("mknod: %w", err)
		}
	}
	if err != nil {
		return err
	}
	a, err := fileattr.OfAt(from, name)
	if err != nil {
		return err
	}
	if a.Mode&unix.S_IFMT != st.Mode&unix.S_IFMT {
		return errors.New("another file took its place while it was copied")
	}
	if err := a.ApplyAt(to, name); err != nil {
		return err
	}
	return times(to, name, st)
}

func (c *copier) file(from, to int, name string) error {
	// O_NONBLOCK: a pipe that took the file's place would hold up the open.
	fd, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	in := os.NewFile(uintptr(fd), name)
	defer in.Close()
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, errors.New("another file took its place while it was copied"))
	}
	if fd, err = unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC,
		0o600); err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), name)
	_, err = sparse.Copy(c.ctx, out, in)
	return errors.Join(err, out.Close())
}

func times(dir int, name string, st *unix.Stat_t) error {
	err := unix.UtimesNanoAt(dir, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}
