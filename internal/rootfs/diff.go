package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	whiteout       = ".wh."            // before the name of what a layer deletes
	opaqueWhiteout = ".wh..wh..opq"    // in a directory that hides what lower layers have in it
	paxXattr       = "SCHILY.xattr."   // before an extended attribute's name in a tar
	overlayXattr   = "trusted.overlay" // what overlayfs writes itself
)

// WriteDiff writes the writable layer of a container directory as the tar that an image's layer is, and returns what of the
// layers below it deletes. The layer must not change meanwhile. Sockets, which nobody listens to after it, are left out.
func WriteDiff(ctx context.Context, w io.Writer, dir string) (deleted []string, err error) {
	d := diff{top: Upper(dir), tw: tar.NewWriter(w), links: map[[2]uint64]string{}, deleted: []string{}}
	err = filepath.WalkDir(d.top, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = d.add(p)
		}
		return err
	})
	if err == nil {
		err = d.tw.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("archive the writable layer: %w", err)
	}
	return d.deleted, nil
}

type diff struct {
	top     string
	tw      *tar.Writer
	links   map[[2]uint64]string // device and inode of a file of more than one name, to its first
	deleted []string
}

func (d *diff) add(p string) error {
	rel, err := filepath.Rel(d.top, p)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: p, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
		d.deleted = append(d.deleted, "/"+rel)
		return d.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(path.Dir(rel), whiteout+path.Base(rel))})
	}
	info, err := os.Lstat(p)
	if err != nil || info.Mode()&fs.ModeSocket != 0 {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(p); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Format = rel, "", "", tar.FormatPAX
	if info.IsDir() {
		h.Name += "/"
	}
	opaque, err := d.xattrs(p, h)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() && st.Nlink > 1 {
		inode := [2]uint64{uint64(st.Dev), st.Ino}
		if first, ok := d.links[inode]; ok {
			return d.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: rel, Linkname: first, Format: tar.FormatPAX})
		}
		d.links[inode] = rel
	}
	if err := d.tw.WriteHeader(h); err != nil {
		return err
	}
	switch {
	case opaque:
		return d.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(rel, opaqueWhiteout)})
	case info.Mode().IsRegular():
		f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyN(d.tw, f, h.Size)
		return err
	}
	return nil
}

// xattrs adds a file's extended attributes to its header, but for overlayfs's own, which say whether a directory is opaque.
func (d *diff) xattrs(p string, h *tar.Header) (opaque bool, err error) {
	names := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Llistxattr(p, names)
	if err != nil {
		if errors.Is(err, unix.ENOTSUP) {
			return false, nil
		}
		return false, &fs.PathError{Op: "llistxattr", Path: p, Err: err}
	}
	value := make([]byte, 64<<10) // XATTR_SIZE_MAX
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		size, err := unix.Lgetxattr(p, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("extended attribute %s: %w", name, &fs.PathError{Op: "lgetxattr", Path: p, Err: err})
		}
		if strings.HasPrefix(name, overlayXattr) {
			opaque = opaque || name == overlayXattr+".opaque" && string(value[:size]) == "y"
			continue
		}
		if strings.HasPrefix(name, "security.selinux") {
			continue // the label of the pod
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxXattr+name] = string(value[:size])
	}
	return opaque, nil
}
