package rootfs

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
	"berth/internal/fileattr"
)

const (
	whiteout       = ".wh."                   // before the name of what a layer deletes
	opaqueWhiteout = ".wh..wh..opq"           // in a directory that hides what lower layers have in it
	paxXattr       = "SCHILY.xattr."          // before an extended attribute's name in a tar
	opaqueXattr    = "trusted.overlay.opaque" // of such a directory in an overlay

	// mostDeleted bounds the list of what a layer deletes, which is in memory: the names are the container's.
	mostDeleted = 64 << 20
	// mostHoles bounds what files have in holes: a tar has them as zeros, and a container can claim a file of any size.
	mostHoles = 64 << 30
)

// WriteDiff writes the writable layer of a container directory as the tar that an image's layer is, and returns
// what of the layers below it deletes. Sockets, which nobody listens to after it, are left out. The layer is reached by
// descriptors alone: one that changes meanwhile gives a tar of no moment, or an error, but never leads to another file.
func WriteDiff(ctx context.Context, w io.Writer, dir string) (deleted []string, err error) {
	root, err := os.OpenFile(Upper(dir), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("archive the writable layer: %w", err)
	}
	defer root.Close()
	d := diff{tree: dirtree.New[struct{}](root), tw: tar.NewWriter(w), links: map[inode]diffName{}, deleted: []string{}}
	defer d.tree.Close()
	if err = d.write(ctx, root); err == nil {
		err = d.tw.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("archive the writable layer: %w", err)
	}
	return d.deleted, nil
}

type (
	diffDir = dirtree.Dir[struct{}]
	inode   struct{ dev, ino uint64 }
	// diffName is a name in a directory: a path would take too much memory for each of a million links.
	diffName struct {
		in   *diffDir
		name string
	}
)

type diff struct {
	tree    *dirtree.Tree[struct{}]
	tw      *tar.Writer
	links   map[inode]diffName // files of more than one name, with the first
	deleted []string
	memory  int   // of deleted
	holes   int64 // bytes of files that are not on disk
}

func (d *diff) write(ctx context.Context, root *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return err
	}
	if err := d.directory(d.tree.Root(), ".", &st); err != nil {
		return err
	}
	return d.tree.Walk(ctx, dirtree.Walk[struct{}]{
		Visit: func(in *diffDir, fd int, name string, st *unix.Stat_t) (*diffDir, error) {
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				sub := in.Below(name)
				return sub, d.directory(sub, sub.Path(), st)
			}
			if err := d.add(in, fd, name, st); err != nil {
				return nil, fmt.Errorf("%s: %w", in.PathOf(name), err)
			}
			return nil, nil
		},
	})
}

// directory writes a directory, and that it is opaque.
func (d *diff) directory(dir *diffDir, name string, st *unix.Stat_t) error {
	fd, err := d.tree.FD(dir)
	if err != nil {
		return err
	}
	a, err := fileattr.Of(fd)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	h := header(tar.TypeDir, name+"/", st, a)
	if err := d.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var mark [2]byte
	if n, err := unix.Fgetxattr(fd, opaqueXattr, mark[:]); err != nil || n != 1 || mark[0] != 'y' {
		return nil
	}
	return d.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(name, opaqueWhiteout)})
}

func header(kind byte, name string, st *unix.Stat_t, a *fileattr.Attributes) *tar.Header {
	h := &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(a.Mode & 0o7777), Uid: int(a.UID), Gid: int(a.GID),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), Format: tar.FormatPAX,
	}
	for key, value := range a.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxXattr+key] = string(value)
	}
	return h
}

// add writes what is no directory.
func (d *diff) add(in *diffDir, fd int, name string, st *unix.Stat_t) error {
	full := in.PathOf(name)
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
		if d.memory += len(full); d.memory > mostDeleted {
			return fmt.Errorf("the container has deleted files whose names have more than %d bytes: %w", mostDeleted,
				errdefs.ErrResourceExhausted)
		}
		d.deleted = append(d.deleted, "/"+full)
		return d.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(path.Dir(full), whiteout+name)})
	}
	kind, ok := map[uint32]byte{
		unix.S_IFREG: tar.TypeReg, unix.S_IFLNK: tar.TypeSymlink, unix.S_IFCHR: tar.TypeChar, unix.S_IFBLK: tar.TypeBlock,
		unix.S_IFIFO: tar.TypeFifo,
	}[st.Mode&unix.S_IFMT]
	if !ok {
		return nil
	}
	if kind == tar.TypeReg {
		return d.file(in, fd, name, full, st)
	}
	a, err := fileattr.OfAt(fd, name)
	if err != nil {
		return err
	}
	h := header(kind, full, st, a)
	switch kind {
	case tar.TypeSymlink:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, name, buf)
		if err != nil {
			return err
		}
		h.Linkname = string(buf[:n])
	case tar.TypeChar, tar.TypeBlock:
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	}
	return d.tw.WriteHeader(h)
}

func (d *diff) file(in *diffDir, dirFD int, name, full string, st *unix.Stat_t) error {
	if st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino}
		if first, ok := d.links[key]; ok {
			return d.tw.WriteHeader(&tar.Header{
				Typeflag: tar.TypeLink, Name: full, Linkname: first.in.PathOf(first.name), Format: tar.FormatPAX,
			})
		}
		d.links[key] = diffName{in, name}
	}
	// O_NONBLOCK: a pipe that took the file's place would hold up the open.
	fd, err := unix.Openat(dirFD, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return err
	}
	if now.Ino != st.Ino || now.Dev != st.Dev {
		return fmt.Errorf("another file took its place while it was archived: %w", errdefs.ErrFailedPrecondition)
	}
	if d.holes += max(now.Size-now.Blocks*512, 0); d.holes > mostHoles {
		return fmt.Errorf("files of the container have more than %d bytes of holes: %w", int64(mostHoles),
			errdefs.ErrResourceExhausted)
	}
	a, err := fileattr.Of(fd)
	if err != nil {
		return err
	}
	h := header(tar.TypeReg, full, &now, a)
	h.Size = now.Size
	if err := d.tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(d.tw, f, h.Size)
	return err
}
