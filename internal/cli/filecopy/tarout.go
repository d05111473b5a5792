package filecopy

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sparse"
)

// packer writes one tar archive.
type packer struct {
	copier
	out *tar.Writer
}

// WriteTar writes a file, or a directory with all that is in it, as a tar archive. The first entry has the name of the
// source, or is "./" where source ends with "/.". Entries have permission bits and times, and no owners. Symbolic links
// are written as links, and holes of files as zeros. The same is skipped as by Copy.
func WriteTar(ctx context.Context, from *Tree, source string, to io.Writer, skipped func(path, why string)) error {
	in, is, err := from.source(ctx, source)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	name, err := from.base(source)
	if err != nil {
		return err
	}
	if name == "" {
		name = "."
	}
	p := &packer{copier: copier{ctx: ctx, to: from, skipped: skipped}, out: tar.NewWriter(to)}
	if is.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = p.directory(in, is, name, source)
	} else {
		err = p.file(in, is, name, source)
	}
	if err == nil {
		err = p.out.Close()
	}
	return p.end(err, source)
}

// header writes what precedes an entry.
func (p *packer) header(name, path string, is *unix.Stat_t, kind byte, size int64, target string) error {
	header := &tar.Header{Typeflag: kind, Name: name, Linkname: target, Size: size, Mode: int64(is.Mode & 0o777),
		ModTime: time.Unix(is.Mtim.Unix())}
	if err := p.out.WriteHeader(header); err != nil {
		return fmt.Errorf("write %s to the archive: %w", path, err)
	}
	return nil
}

// file writes a regular file, of which in is a descriptor of O_PATH. A file that does not say how long it is is read
// before it is written.
func (p *packer) file(in int, is *unix.Stat_t, name, path string) error {
	source, err := p.reopen(in, unix.O_RDONLY)
	if err != nil {
		return p.fault("open", path, err)
	}
	defer source.Close()
	size, content := is.Size, io.Reader(source)
	if size == 0 {
		unsized, err := io.ReadAll(io.LimitReader(reader{p.ctx, source}, maxUnsized+1))
		if err != nil {
			return p.fault("read", path, err)
		}
		if size = int64(len(unsized)); size > maxUnsized {
			return p.fault("read", path, errUnsized)
		}
		content = bytes.NewReader(unsized)
	}
	if err := p.header(name, path, is, tar.TypeReg, size, ""); err != nil {
		return err
	}
	n, err := sparse.CopyN(p.ctx, p.out, content, size)
	if errors.Is(err, io.EOF) { // the header has promised as much
		p.skip(path, "it has become shorter while it was read: the archive has zeros in place of its end")
		_, err = sparse.CopyN(p.ctx, p.out, zeros{}, size-n)
	}
	if err != nil {
		return fmt.Errorf("write %s to the archive: %w", path, err)
	}
	return nil
}

// zeros is a file without an end that has nothing but zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// directory writes a directory, of which in is a descriptor of O_PATH, and all that is in it.
func (p *packer) directory(in int, is *unix.Stat_t, name, path string) error {
	if err := p.header(name+"/", path, is, tar.TypeDir, 0, ""); err != nil {
		return err
	}
	list, err := p.reopen(in, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return p.fault("open", path, err)
	}
	defer list.Close()
	names, err := list.Readdirnames(-1)
	if err != nil {
		return p.fault("list", path, err)
	}
	for _, entry := range names {
		if err := p.entry(in, entry, name+"/"+entry, filepath.Join(path, entry)); err != nil {
			return err
		}
	}
	return nil
}

// entry writes what the directory in has under the last element of a path.
func (p *packer) entry(in int, own, name, path string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	fd, err := unix.Openat(in, own, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT { // removed meanwhile
		return nil
	}
	if err != nil {
		return p.fault("open", path, err)
	}
	defer unix.Close(fd)
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return p.fault("stat", path, err)
	}
	if why := leftOut(fd, &is, path); why != "" {
		p.skip(path, why)
		return nil
	}
	switch is.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := readlink(fd)
		if err != nil {
			return p.fault("read the link", path, err)
		}
		return p.header(name, path, &is, tar.TypeSymlink, 0, target)
	case unix.S_IFREG:
		err := p.file(fd, &is, name, path)
		if errors.Is(err, unix.EAGAIN) {
			p.skip(path, leased)
			return nil
		}
		return err
	}
	return p.directory(fd, &is, name, path)
}

// errUnsized is for a file that could be read without an end.
var errUnsized = fmt.Errorf("it has no length, and more than %d MiB come from it", maxUnsized>>20)
