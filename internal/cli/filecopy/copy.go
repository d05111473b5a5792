package filecopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/lease"
	"berth/internal/sparse"
)

// copier is one copy.
type copier struct {
	ctx      context.Context
	to       *Tree
	skipped  func(path, why string)
	top      unix.Stat_t // the first directory that the copy made
	hasTop   bool
	leftOver int           // how many entries have been skipped
	waited   time.Duration // for leases, see leaseWait
}

// Copy copies a file, or a directory with all that is in it. A directory that exists takes the source under the
// source's name, or only its content where source ends with "/.". What is neither a file, a directory nor a symbolic
// link is skipped, and so are file systems such as /proc and what is below a path that is too long to be used: skipped
// is told, and the result is an error.
func Copy(ctx context.Context, from *Tree, source string, to *Tree, destination string,
	skipped func(path, why string)) error {
	in, is, err := from.source(ctx, source)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	directory := is.Mode&unix.S_IFMT == unix.S_IFDIR
	name, err := from.base(source)
	if err != nil {
		return err
	}
	parent, name, err := to.destination(ctx, destination, name, directory)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	c := &copier{ctx: ctx, to: to, skipped: skipped}
	if directory {
		err = c.directory(in, is, parent, name, source)
	} else {
		err = c.file(in, is, parent, name, source)
	}
	return c.end(err, source)
}

// end is the result of a copy of which entries may have been skipped.
func (c *copier) end(err error, source string) error {
	if err == nil && c.leftOver > 0 {
		err = fmt.Errorf("%d entries of %s were skipped", c.leftOver, source)
	}
	return err
}

// source opens what is to be copied: a file or a directory. The descriptor can neither read nor write.
func (t *Tree) source(ctx context.Context, path string) (in int, is *unix.Stat_t, err error) {
	if in, err = t.open(ctx, path, 0); err != nil {
		return 0, nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	is = &unix.Stat_t{}
	if err = unix.Fstat(in, is); err != nil {
		err = &os.PathError{Op: "stat", Path: path, Err: err}
	} else if kind := is.Mode & unix.S_IFMT; kind != unix.S_IFDIR && kind != unix.S_IFREG {
		err = fmt.Errorf("%s is neither a file nor a directory", path)
	} else if t.inside && kernels(in) {
		err = fmt.Errorf("%s: %w: show it with `berth exec`", path, errKernels)
	}
	if err != nil {
		unix.Close(in)
		return 0, nil, err
	}
	return in, is, nil
}

// base is the name under which a directory takes the source; empty where it takes only its content.
func (t *Tree) base(source string) (string, error) {
	if source == "." && !t.inside || strings.HasSuffix(source, "/.") {
		return "", nil
	}
	if t.inside {
		source = filepath.Clean("/" + source)
	} else if absolute, err := filepath.Abs(source); err == nil {
		source = absolute
	} else {
		return "", err
	}
	if source == "/" {
		return "", nil
	}
	return filepath.Base(source), nil
}

// destination opens the directory that takes the source, and says under which name; "." is the directory itself.
func (t *Tree) destination(ctx context.Context, path, name string, directory bool) (int, string, error) {
	fd, err := t.directory(ctx, path)
	if err == nil {
		if name == "" {
			name = "."
		}
		return fd, name, nil
	}
	if err == unix.ENOTDIR && directory {
		return 0, "", fmt.Errorf("%s is not a directory, and the source is one", path)
	}
	if err != unix.ENOENT && err != unix.ENOTDIR || strings.HasSuffix(path, "/") {
		return 0, "", &os.PathError{Op: "open directory", Path: path, Err: err}
	}
	name = filepath.Base(path)
	if name == ".." || name == "." {
		return 0, "", &os.PathError{Op: "open directory", Path: path, Err: err}
	}
	fd, err = t.directory(ctx, filepath.Dir(path))
	if err != nil {
		return 0, "", &os.PathError{Op: "open directory", Path: filepath.Dir(path), Err: err}
	}
	return fd, name, nil
}

// leaseWait is how long a copy waits in all for processes that hold leases of its files.
const leaseWait = 3 * time.Second

// leased is why a file is skipped whose reopen fails with unix.EAGAIN.
const leased = "a process holds a lease of it, or of the file that it replaces"

// reopen opens what a descriptor of O_PATH stands for. The file system is not asked for a path again. A file whose
// lease a process does not give up is an error that is unix.EAGAIN.
func (c *copier) reopen(fd, flags int) (*os.File, error) {
	name := "/proc/self/fd/" + strconv.Itoa(fd)
	begin := time.Now()
	waited := false
	opened, err := lease.Open(c.ctx, leaseWait-c.waited, func() (int, error) {
		fd, err := unix.Open(name, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		waited = waited || err == unix.EAGAIN
		return fd, err
	})
	if waited {
		c.waited += time.Since(begin)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(opened, false); err != nil {
		unix.Close(opened)
		return nil, err
	}
	return os.NewFile(uintptr(opened), name), nil
}

// fault names the file and, where the kernel's word for it is a riddle, the reason.
func (c *copier) fault(op, path string, err error) error {
	switch {
	case err == unix.EOVERFLOW && c.to.inside:
		err = errors.New("the container has a user namespace in which this process has no user: " +
			"give the files to `berth exec -i` with tar")
	case err == unix.ELOOP:
		err = errors.New("the destination is a symbolic link")
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}

// give makes the owner of a new file that of the tree.
func (c *copier) give(fd int) error {
	if c.to.uid < 0 {
		return nil
	}
	return unix.Fchown(fd, c.to.uid, c.to.gid)
}

// file copies a regular file, of which in is a descriptor of O_PATH, to a name in the directory parent.
func (c *copier) file(in int, is *unix.Stat_t, parent int, name, path string) (err error) {
	source, err := c.reopen(in, unix.O_RDONLY)
	if err != nil {
		return c.fault("open", path, err)
	}
	defer source.Close()
	out, created, err := c.create(parent, name, is)
	if err != nil {
		return c.fault("write the copy of", path, err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := c.content(out, source, is.Size > 0 && !kernels(in)); err != nil {
		return fmt.Errorf("write the copy of %s: %w", path, err)
	}
	return c.finish(out, created, is.Mode, path)
}

// create makes a file, which only root can open as yet, or empties one that is there.
func (c *copier) create(parent int, name string, source *unix.Stat_t) (out *os.File, created bool, err error) {
	fd, err := unix.Openat(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), name), true, nil
	}
	if err == unix.EEXIST {
		out, err = c.existing(parent, name, source)
	}
	return out, false, err
}

// finish gives a file that was made its owner and its permission bits.
func (c *copier) finish(out *os.File, created bool, mode uint32, path string) error {
	if !created {
		return nil
	}
	if err := c.give(int(out.Fd())); err != nil {
		return c.fault("change the owner of the copy of", path, err)
	}
	if err := unix.Fchmod(int(out.Fd()), mode&0o777); err != nil {
		return c.fault("change the mode of the copy of", path, err)
	}
	return nil
}

// maxUnsized is how much is copied of a file that does not say how long it is.
const maxUnsized = 64 << 20

// content copies as much as a file has now, and fills no hole: a container can write on and on, and make a file of any
// length. What FUSE and the kernel make up may have a length only when it is read.
func (c *copier) content(to, from *os.File, sized bool) error {
	if sized {
		_, err := sparse.Copy(c.ctx, to, from)
		return err
	}
	n, err := io.Copy(to, io.LimitReader(reader{c.ctx, from}, maxUnsized+1))
	if err == nil && n > maxUnsized {
		err = errUnsized
	}
	return err
}

// reader ends with its context.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// existing empties a regular file, which keeps its owner and its mode.
func (c *copier) existing(parent int, name string, source *unix.Stat_t) (*os.File, error) {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return nil, err
	}
	if is.Dev == source.Dev && is.Ino == source.Ino {
		return nil, errors.New("the destination is the same file")
	}
	switch is.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if c.to.inside && kernels(fd) {
			return nil, errKernels
		}
		return c.reopen(fd, unix.O_WRONLY|unix.O_TRUNC)
	case unix.S_IFLNK:
		return nil, unix.ELOOP
	}
	return nil, errors.New("the destination exists and is not a regular file")
}

// directory copies a directory, of which in is a descriptor of O_PATH.
func (c *copier) directory(in int, is *unix.Stat_t, parent int, name, path string) error {
	err := unix.Mkdirat(parent, name, 0o700)
	created := err == nil
	if err != nil && err != unix.EEXIST {
		return c.fault("make the copy of", path, err)
	}
	out, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return c.fault("make the copy of", path, err)
	}
	defer unix.Close(out)
	if c.to.inside && kernels(out) {
		return c.fault("write the copy of", path, errKernels)
	}
	if !c.hasTop {
		if err := unix.Fstat(out, &c.top); err != nil {
			return c.fault("make the copy of", path, err)
		}
		c.hasTop = true
	}
	if is.Dev == c.top.Dev && is.Ino == c.top.Ino {
		return fmt.Errorf("%s is copied into itself", path)
	}
	list, err := c.reopen(in, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return c.fault("open", path, err)
	}
	defer list.Close()
	names, err := list.Readdirnames(-1)
	if err != nil {
		return c.fault("list", path, err)
	}
	for _, entry := range names {
		if err := c.entry(in, entry, out, filepath.Join(path, entry)); err != nil {
			return err
		}
	}
	if !created {
		return nil
	}
	if err := c.give(out); err != nil {
		return c.fault("change the owner of the copy of", path, err)
	}
	if err := unix.Fchmod(out, is.Mode&0o777); err != nil {
		return c.fault("change the mode of the copy of", path, err)
	}
	return nil
}

// entry copies what the directory in has under a name to the same name in the directory out.
func (c *copier) entry(in int, name string, out int, path string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	fd, err := unix.Openat(in, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT { // removed meanwhile
		return nil
	}
	if err != nil {
		return c.fault("open", path, err)
	}
	defer unix.Close(fd)
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return c.fault("stat", path, err)
	}
	if why := leftOut(fd, &is, path); why != "" {
		c.skip(path, why)
		return nil
	}
	switch is.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return c.link(fd, out, name, path)
	case unix.S_IFREG:
		err := c.file(fd, &is, out, name, path)
		if errors.Is(err, unix.EAGAIN) {
			c.skip(path, leased)
			return nil
		}
		return err
	}
	return c.directory(fd, &is, out, name, path)
}

// leftOut says why an entry of a directory is not copied; empty: it is.
func leftOut(fd int, is *unix.Stat_t, path string) string {
	switch kind := is.Mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK:
	case kind != unix.S_IFREG && kind != unix.S_IFDIR:
		return "it is neither a file, a directory nor a symbolic link"
	case kernels(fd):
		return errKernels.Error()
	case kind == unix.S_IFDIR && len(path) > unix.PathMax: // each level has descriptors and a path in memory
		return "its path is longer than any that could be opened"
	}
	return ""
}

func (c *copier) skip(path, why string) {
	c.leftOver++
	c.skipped(path, why)
}

// errKernels is for files that have no end or an effect, and that root may read and write where a container may not.
var errKernels = errors.New("its files are made by the kernel")

// kernels says whether a file or directory is in a file system that the kernel makes up.
func kernels(fd int) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return false
	}
	switch fs.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.BPF_FS_MAGIC, unix.SECURITYFS_MAGIC:
		return true
	}
	return false
}

// link copies a symbolic link as it is.
func (c *copier) link(in, out int, name, path string) error {
	target, err := readlink(in)
	if err != nil {
		return c.fault("read the link", path, err)
	}
	return c.symlink(target, out, name, path)
}

// readlink reads the link of which fd is a descriptor of O_PATH.
func readlink(fd int) (string, error) {
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buffer)
	return string(buffer[:max(n, 0)]), err
}

// symlink makes a symbolic link. It takes the place of a link that is there.
func (c *copier) symlink(target string, out int, name, path string) error {
	err := unix.Symlinkat(target, out, name)
	if err == unix.EEXIST {
		var is unix.Stat_t
		if unix.Fstatat(out, name, &is, unix.AT_SYMLINK_NOFOLLOW) == nil && is.Mode&unix.S_IFMT == unix.S_IFLNK &&
			unix.Unlinkat(out, name, 0) == nil {
			err = unix.Symlinkat(target, out, name)
		}
	}
	if err == nil && c.to.uid >= 0 {
		err = unix.Fchownat(out, name, c.to.uid, c.to.gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return c.fault("make the copy of the link", path, err)
	}
	return nil
}
