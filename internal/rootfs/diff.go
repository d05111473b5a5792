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
	"berth/internal/sparse"
)

const (
	whiteout       = ".wh."                   // before the name of what a layer deletes
	opaqueWhiteout = ".wh..wh..opq"           // in a directory that hides what lower layers have in it
	paxXattr       = "SCHILY.xattr."          // before an extended attribute's name in a tar
	opaqueXattr    = "trusted.overlay.opaque" // of such a directory in an overlay

	// deletedMemory is what the list of what a layer deletes takes for each path, beside the path.
	deletedMemory = 32
	// mostHoles bounds what files have in holes: a tar has them as zeros, and a container can claim a file of any size.
	mostHoles = 64 << 30
)

// What a container can make as much of as it likes is bounded. Tests lower these.
var (
	// mostMemory bounds what is kept in memory: the list of what the layer deletes, and the files with several names.
	mostMemory = 64 << 20
	// mostText bounds the paths, targets of links and extended attributes in the tar. Each entry has its whole path, so an
	// empty file in a deep directory, which takes no space on the node's disk, can take a megabyte in the tar.
	mostText = 1 << 30
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
	d := diff{tree: dirtree.New[struct{}](root), tw: tar.NewWriter(w), deleted: []string{}}
	d.links.Spend = d.remember
	defer d.tree.Close()
	if err = d.write(ctx, root); err == nil {
		err = d.tw.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("archive the writable layer: %w", err)
	}
	return d.deleted, nil
}

type diffDir = dirtree.Dir[struct{}]

type diff struct {
	tree    *dirtree.Tree[struct{}]
	tw      *tar.Writer
	links   dirtree.Links[struct{}]
	deleted []string
	memory  int   // of deleted and links, see mostMemory
	text    int   // see mostText
	holes   int64 // bytes of files that are not on disk
}

// remember counts what is kept in memory until the end.
func (d *diff) remember(bytes int) error {
	if d.memory += bytes; d.memory > mostMemory {
		return fmt.Errorf("the files that the container has deleted, and those with several names, take more than %d bytes "+
			"of memory: %w", mostMemory, errdefs.ErrResourceExhausted)
	}
	return nil
}

// spend counts what the tar has of texts.
func (d *diff) spend(bytes int) error {
	if d.text += bytes; d.text > mostText {
		return fmt.Errorf("the paths and attributes of the container's files have more than %d bytes: %w", mostText,
			errdefs.ErrResourceExhausted)
	}
	return nil
}

// path is the whole path of an entry, which is counted before more is done with it.
func (d *diff) path(in *diffDir, name string) (string, error) {
	full := in.PathOf(name)
	return full, d.spend(len(full))
}

// put writes the header of an entry whose path was counted.
func (d *diff) put(h *tar.Header) error {
	more := len(h.Linkname)
	for key, value := range h.PAXRecords {
		more += len(key) + len(value)
	}
	if err := d.spend(more); err != nil {
		return err
	}
	return d.tw.WriteHeader(h)
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
				full, err := d.path(in, name)
				if err != nil {
					return nil, err
				}
				sub := in.Below(name)
				return sub, d.directory(sub, full, st)
			}
			if err := d.add(ctx, in, fd, name, st); err != nil {
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
	if err := d.put(h); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var mark [2]byte
	if n, err := unix.Fgetxattr(fd, opaqueXattr, mark[:]); err != nil || n != 1 || mark[0] != 'y' {
		return nil
	}
	if err := d.spend(len(name) + len(opaqueWhiteout)); err != nil {
		return err
	}
	return d.put(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(name, opaqueWhiteout)})
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
func (d *diff) add(ctx context.Context, in *diffDir, fd int, name string, st *unix.Stat_t) error {
	full, err := d.path(in, name)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
		if err := d.remember(deletedMemory + len(full)); err != nil {
			return err
		}
		d.deleted = append(d.deleted, "/"+full)
		return d.put(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(path.Dir(full), whiteout+name)})
	}
	kind, ok := map[uint32]byte{
		unix.S_IFREG: tar.TypeReg, unix.S_IFLNK: tar.TypeSymlink, unix.S_IFCHR: tar.TypeChar, unix.S_IFBLK: tar.TypeBlock,
		unix.S_IFIFO: tar.TypeFifo,
	}[st.Mode&unix.S_IFMT]
	if !ok {
		return nil
	}
	if kind == tar.TypeReg {
		return d.file(ctx, in, fd, name, full, st)
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
	return d.put(h)
}

func (d *diff) file(ctx context.Context, in *diffDir, dirFD int, name, full string, st *unix.Stat_t) error {
	first, firstName, err := d.links.First(in, name, st)
	if err != nil {
		return err
	}
	if first != nil {
		return d.put(&tar.Header{
			Typeflag: tar.TypeLink, Name: full, Linkname: first.PathOf(firstName), Format: tar.FormatPAX,
		})
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
	if err := d.put(h); err != nil {
		return err
	}
	_, err = sparse.CopyN(ctx, d.tw, f, h.Size)
	return err
}
