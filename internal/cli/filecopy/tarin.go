package filecopy

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// extractor reads one tar archive.
type extractor struct {
	copier
	root  int             // the directory that takes the entries
	files map[string]bool // the regular files that were written, by their names, for hard links to them
}

// ReadTar writes the entries of a tar archive into a directory, which exists. As with Copy, no symbolic link below that
// directory is followed, also if the archive has brought it, new files belong to the user of the container, and only
// permission bits are kept. A name that begins with "/" is taken without it, and one with ".." is refused. What is
// neither a file, a directory nor a link is skipped.
func ReadTar(ctx context.Context, from io.Reader, to *Tree, destination string,
	skipped func(path, why string)) error {
	root, err := to.directory(ctx, destination)
	if err != nil {
		return &os.PathError{Op: "open directory", Path: destination, Err: err}
	}
	defer unix.Close(root)
	x := &extractor{copier: copier{ctx: ctx, to: to, skipped: skipped}, root: root, files: map[string]bool{}}
	in := &counted{Reader: reader{ctx, from}}
	archive := tar.NewReader(in)
	for {
		header, err := archive.Next()
		switch {
		case err == io.EOF && in.n == 0:
			return errors.New("the archive is empty: a tar archive is expected on standard input")
		case err == io.EOF:
			// Whoever writes the archive may pad it, and would be killed by SIGPIPE.
			_, err = io.Copy(io.Discard, in)
			return x.end(err, "the archive")
		case err != nil:
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := x.extract(header, archive); err != nil {
			return err
		}
	}
}

// counted counts the bytes that were read.
type counted struct {
	io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// split returns the elements of the name of an entry; none stand for the directory itself.
func split(name string) ([]string, error) {
	var elements []string
	for element := range strings.SplitSeq(name, "/") {
		switch element {
		case "", ".":
		case "..":
			return nil, fmt.Errorf("the archive has %q: a name with \"..\" is not taken", name)
		default:
			elements = append(elements, element)
		}
	}
	return elements, nil
}

// extract makes one entry.
func (x *extractor) extract(header *tar.Header, content io.Reader) error {
	kind := header.Typeflag
	switch kind {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeGNUSparse:
	default:
		x.skip(header.Name, "it is neither a file, a directory nor a link")
		return nil
	}
	elements, err := split(header.Name)
	if err != nil {
		return err
	}
	if len(elements) == 0 {
		if kind != tar.TypeDir {
			return fmt.Errorf("the archive has %q, which is no name of a file", header.Name)
		}
		return nil // the directory that takes the entries stays as it is
	}
	parent, err := x.enter(elements[:len(elements)-1], header.Name)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	name := elements[len(elements)-1]
	switch kind {
	case tar.TypeDir:
		fd, err := x.subdirectory(parent, name, uint32(header.Mode), header.Name)
		if err == nil {
			unix.Close(fd)
		}
		return err
	case tar.TypeSymlink:
		return x.symlink(header.Linkname, parent, name, header.Name)
	case tar.TypeLink:
		return x.hardlink(header, parent, name)
	}
	if err := x.file(content, uint32(header.Mode), parent, name, header.Name); err != nil {
		return err
	}
	x.files[filepath.Join(elements...)] = true
	return nil
}

// enter opens the directory of these names below that which takes the entries. A directory that is missing is made.
func (x *extractor) enter(elements []string, path string) (int, error) {
	at, err := unix.FcntlInt(uintptr(x.root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, x.fault("open the directory of", path, err)
	}
	for _, element := range elements {
		next, err := x.subdirectory(at, element, 0o755, path)
		unix.Close(at)
		if err != nil {
			return 0, err
		}
		at = next
	}
	return at, nil
}

// subdirectory opens a directory, and makes it with the mode if it is missing.
func (x *extractor) subdirectory(parent int, name string, mode uint32, path string) (int, error) {
	err := unix.Mkdirat(parent, name, 0o700)
	created := err == nil
	if err != nil && err != unix.EEXIST {
		return 0, x.fault("make a directory for", path, err)
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOTDIR && linked(parent, name) {
		err = unix.ELOOP // as for a file
	}
	if err != nil {
		return 0, x.fault("make a directory for", path, err)
	}
	switch {
	case x.to.inside && kernels(fd):
		err = errKernels
	case created:
		if err = x.give(fd); err == nil {
			err = unix.Fchmod(fd, mode&0o777)
		}
	}
	if err != nil {
		unix.Close(fd)
		return 0, x.fault("make a directory for", path, err)
	}
	return fd, nil
}

// linked says whether a name stands for a symbolic link.
func linked(parent int, name string) bool {
	var is unix.Stat_t
	return unix.Fstatat(parent, name, &is, unix.AT_SYMLINK_NOFOLLOW) == nil && is.Mode&unix.S_IFMT == unix.S_IFLNK
}

// file makes a regular file. One that is there keeps its owner and its mode.
func (x *extractor) file(content io.Reader, mode uint32, parent int, name, path string) (err error) {
	out, created, err := x.create(parent, name, &unix.Stat_t{})
	if err != nil {
		return x.fault("write", path, err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, content); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return x.finish(out, created, mode, path)
}

// hardlink links to a regular file that the archive has brought: of others, nobody knows what they are.
func (x *extractor) hardlink(header *tar.Header, parent int, name string) error {
	elements, err := split(header.Linkname)
	if err != nil {
		return err
	}
	if target := filepath.Join(elements...); !x.files[target] {
		return fmt.Errorf("the archive has a hard link %s to %s, which is no file that it has brought", header.Name,
			header.Linkname)
	}
	from, err := x.enter(elements[:len(elements)-1], header.Linkname)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	last := elements[len(elements)-1]
	err = unix.Linkat(from, last, parent, name, 0)
	if err == unix.EEXIST {
		var is unix.Stat_t
		if unix.Fstatat(parent, name, &is, unix.AT_SYMLINK_NOFOLLOW) == nil && is.Mode&unix.S_IFMT == unix.S_IFREG &&
			unix.Unlinkat(parent, name, 0) == nil {
			err = unix.Linkat(from, last, parent, name, 0)
		}
	}
	if err != nil {
		return x.fault("make the hard link", header.Name, err)
	}
	return nil
}
