package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/checkpoint/archive"
	"berth/internal/dirtree"
	"berth/internal/lease"
)

type subdir = dirtree.Dir[struct{}]

// directory is a checkpoint in the layout of an archive. It may be a layer of an image, and is reached by descriptors
// that follow no link of it.
type directory struct {
	root *os.File
	tree *dirtree.Tree[struct{}]
	// rootOnly has files refused that others than root can have written to.
	rootOnly bool
}

func openDirectory(dir string) (*directory, error) {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &directory{root: root, tree: dirtree.New[struct{}](root)}, nil
}

// openTrusted opens a directory that only root can have written to: what is restored from it is as good as a program
// that root runs. The error is errdefs.ErrNotFound where there is none, or errdefs.ErrInvalidArgument.
func openTrusted(dir string) (*directory, error) {
	d, err := openDirectory(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no such directory: %w", errdefs.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	d.rootOnly = true
	if err := rootsOwn(d.root); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// rootsOwn refuses what others than root can have written to, with errdefs.ErrInvalidArgument.
func rootsOwn(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if othersWrite(&st) {
		return fmt.Errorf("%s can be written to by others than root: %w", f.Name(), errdefs.ErrInvalidArgument)
	}
	return nil
}

func othersWrite(st *unix.Stat_t) bool { return st.Uid != 0 || st.Mode&0o022 != 0 }

func (d *directory) close() {
	d.tree.Close()
	d.root.Close()
}

// sub is the directory itself, or the one of CRIU's images.
func (d *directory) sub(name string) *subdir {
	if name == "" {
		return d.tree.Root()
	}
	return d.tree.Root().Below(name)
}

// leaseWait is how long open waits for a process that holds a lease of the file.
const leaseWait = 2 * time.Second

// open opens a file by its path, which must have no link in it.
func (d *directory) open(name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	// The kernel says EAGAIN also where something on the path is renamed meanwhile.
	fd, err := lease.Open(context.Background(), leaseWait, func() (int, error) {
		return unix.Openat2(int(d.root.Fd()), name, &how)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	if d.rootOnly {
		if err := rootsOwn(f); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// metadata reads a regular file of metadata.
func (d *directory) metadata(name string) ([]byte, error) { return d.read(name, archive.MetadataSize) }

// read reads a regular file that has no more bytes than a limit.
func (d *directory) read(name string, limit int64) ([]byte, error) {
	f, err := d.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path.Base(name))
	case info.Size() > limit:
		return nil, fmt.Errorf("%s has %d bytes, over the limit of %d", path.Base(name), info.Size(), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// ReadDir reads what a directory in the layout of an archive says of its container. All in it must be plain files.
func ReadDir(dir string) (*Info, error) {
	d, err := openDirectory(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	defer d.close()
	return d.info("checkpoint")
}

func (d *directory) info(what string) (*Info, error) {
	if err := d.plain(); err != nil {
		return nil, err
	}
	return parse(what, d.metadata)
}

// ReadDeleted reads what the checkpoint in a directory deletes of the image.
func ReadDeleted(dir string) ([]string, error) {
	d, err := openDirectory(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	defer d.close()
	b, err := d.metadata(DeletedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var deleted []string
	if err == nil {
		err = json.Unmarshal(b, &deleted)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", DeletedFile, err, errdefs.ErrInvalidArgument)
	}
	return deleted, nil
}

// plain makes sure that CRIU, which opens what is in the directory, is led nowhere else.
func (d *directory) plain() error {
	for _, sub := range []string{"", ImagesDir} {
		err := d.each(sub, func(_ int, name string, kind uint32) error {
			if kind != unix.S_IFREG && (sub != "" || kind != unix.S_IFDIR) {
				return fmt.Errorf("checkpoint: %q is no regular file: %w", path.Join(sub, name), errdefs.ErrInvalidArgument)
			}
			return nil
		})
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			err = fmt.Errorf("checkpoint: it has no directory %q: %w", sub, errdefs.ErrInvalidArgument)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls fn with what is in a directory, and its type.
func (d *directory) each(sub string, fn func(fd int, name string, kind uint32) error) error {
	fd, err := d.tree.FD(d.sub(sub))
	if err != nil {
		return err
	}
	return dirtree.Names(fd, func(name string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &fs.PathError{Op: "stat", Path: path.Join(sub, name), Err: err}
		}
		return fn(fd, name, st.Mode&unix.S_IFMT)
	})
}

// Link gives the files of a checkpoint second names in another directory of the same file system, as Unpack
// would unpack it.
func Link(from, to string) error {
	source, err := openDirectory(from)
	if err != nil {
		return err
	}
	defer source.close()
	if err := os.MkdirAll(path.Join(to, ImagesDir), 0o700); err != nil {
		return err
	}
	target, err := openDirectory(to)
	if err != nil {
		return err
	}
	defer target.close()
	for _, sub := range []string{"", ImagesDir} {
		at, err := target.tree.FD(target.sub(sub))
		if err != nil {
			return err
		}
		err = source.each(sub, func(fd int, name string, kind uint32) error {
			if kind != unix.S_IFREG {
				return nil
			}
			if err := unix.Linkat(fd, name, at, name, 0); err != nil {
				return fmt.Errorf("link %s: %w", path.Join(sub, name), err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
