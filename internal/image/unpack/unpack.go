package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	metaPrefix     = ".wh..wh." // aufs' own; only the opaque marker means something
	opaqueMarker   = ".wh..wh..opq"

	// OpaqueXattr marks a directory that hides what lower layers have in it (Documentation/filesystems/overlayfs.rst).
	OpaqueXattr = "trusted.overlay.opaque"

	block     = 4096     // what the smallest file takes on disk
	hole      = 32 << 10 // zeros of this length, aligned, are not written
	copyBytes = 256 << 10
	maxName   = 4096      // PATH_MAX
	maxFile   = 256 << 30 // a few bytes of tar may claim a sparse file of any size, whose zeros are read one by one
)

// Result is what a layer's directory holds.
type Result struct {
	Bytes  uint64 // on disk, rounded up to blocks
	Inodes uint64
	// Implied are the directories that the tar has no entry for but puts something into, sorted, relative. They have mode
	// 0755 and owner 0:0 here; in an image they should look as the layers below have them.
	Implied []string
	// OpaqueRoot: the layer hides everything below it. Overlayfs does not look at the mark on a layer's root.
	OpaqueRoot bool
	// Unsupported are extended attributes that the file system does not take, by name.
	Unsupported []string
}

// Layer unpacks the tar that r yields into the directory root, which must be empty. What it made when it fails is left to
// the caller. A tar that cannot be unpacked safely or faithfully is errdefs.ErrInvalidArgument; a full disk is
// errdefs.ErrResourceExhausted. It reads r to its end of archive, not further.
func Layer(ctx context.Context, root *os.File, r io.Reader) (*Result, error) {
	l := &layer{
		root:        &dir{fd: int(root.Fd())},
		dirs:        map[string]*dir{},
		implied:     map[string]struct{}{},
		unsupported: map[string]struct{}{},
		buf:         make([]byte, copyBytes),
	}
	defer l.forgetDirs()
	tr := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, readError(err)
		}
		if err := l.entry(ctx, h, tr); err != nil {
			return nil, fmt.Errorf("unpack %q: %w", h.Name, diskError(err))
		}
	}
	if err := l.setDirTimes(); err != nil {
		return nil, diskError(err)
	}
	return &Result{
		Bytes: l.bytes, Inodes: l.inodes,
		Implied:     slices.Sorted(maps.Keys(l.implied)),
		OpaqueRoot:  l.opaqueRoot,
		Unsupported: slices.Sorted(maps.Keys(l.unsupported)),
	}, nil
}

// layer is a layer that is being unpacked. It belongs to one goroutine.
type layer struct {
	root        *dir
	dirs        map[string]*dir // open directories by their path from the root
	implied     map[string]struct{}
	unsupported map[string]struct{}
	times       []dirTime
	bytes       uint64
	inodes      uint64
	opaqueRoot  bool
	buf         []byte
}

// dir is an open directory of the layer. path is relative to the root and has no link in it; the root's is empty.
type dir struct {
	fd   int
	path string
}

type dirTime struct {
	path string
	when [2]unix.Timespec
}

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// clean makes a name of the tar relative to the root. A name that climbs out of the root is refused.
func clean(name string) (string, error) {
	if len(name) > maxName {
		return "", invalid("the name has %d bytes", len(name))
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", invalid("the name has a NUL in it")
	}
	depth := 0
	for c := range strings.SplitSeq(name, "/") {
		switch c {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return "", invalid("the name leads out of the layer")
			}
		default:
			depth++
		}
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

func (l *layer) entry(ctx context.Context, h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return invalid("the root is not a directory")
		}
		return l.setAttributes(l.root.fd, l.root.path, h)
	}
	for c := range strings.SplitSeq(path.Dir(name), "/") {
		if strings.HasPrefix(c, metaPrefix) {
			return nil // below one of aufs' own directories
		}
		if strings.HasPrefix(c, whiteoutPrefix) {
			return invalid("a whiteout has nothing below it")
		}
	}
	parentPath, base := path.Split(name)
	parentPath = strings.TrimSuffix(parentPath, "/")
	if strings.HasPrefix(base, metaPrefix) && base != opaqueMarker {
		return nil
	}
	if len(l.dirs) > 128 {
		l.forgetDirs()
	}
	parent, err := l.dir(parentPath, true)
	if err != nil {
		return err
	}
	if base == opaqueMarker {
		if parent == l.root {
			l.opaqueRoot = true
		}
		return unix.Fsetxattr(parent.fd, OpaqueXattr, []byte("y"), 0)
	}
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return l.whiteout(parent, hidden)
	}
	if len(base) > unix.NAME_MAX {
		return invalid("a component of the name has %d bytes", len(base))
	}
	return l.create(ctx, parent, base, h, content)
}

// whiteout hides what lower layers have under a name. What this layer itself has there stays (layer.md, "Whiteouts").
func (l *layer) whiteout(parent *dir, name string) error {
	if name == "" || name == "." || name == ".." {
		return invalid("a whiteout of %q", name)
	}
	err := unix.Mknodat(parent.fd, name, unix.S_IFCHR, 0)
	if err == nil {
		l.inodes++
		return nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(parent.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil // it hides the lower one by being there
	}
	fd, err := openDir(parent.fd, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	delete(l.implied, path.Join(parent.path, name))
	return unix.Fsetxattr(fd, OpaqueXattr, []byte("y"), 0)
}

func (l *layer) create(ctx context.Context, parent *dir, base string, h *tar.Header, content io.Reader) error {
	full := path.Join(parent.path, base)
	switch h.Typeflag {
	case tar.TypeDir:
		return l.mkdir(parent, base, h)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		if h.Size > maxFile {
			return invalid("a file of %d bytes", h.Size)
		}
		var fd int
		err := l.replacing(parent, base, func() (err error) {
			fd, err = unix.Openat(parent.fd, base,
				unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
			return err
		})
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		l.inodes++
		if err := l.write(ctx, fd, h.Size, content); err != nil {
			return err
		}
		return l.setAttributes(fd, full, h)
	case tar.TypeLink:
		return l.link(parent, base, h.Linkname)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= maxName {
			return invalid("a symbolic link to a name of %d bytes", len(h.Linkname))
		}
		err := l.replacing(parent, base, func() error { return unix.Symlinkat(h.Linkname, parent.fd, base) })
		if err != nil {
			return err
		}
		l.inodes++
		return l.setAttributesAt(parent, base, h)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		mode := uint32(h.Mode & 0o7777)
		dev := 0
		switch h.Typeflag {
		case tar.TypeChar:
			mode |= unix.S_IFCHR
		case tar.TypeBlock:
			mode |= unix.S_IFBLK
		default:
			mode |= unix.S_IFIFO
		}
		if h.Typeflag != tar.TypeFifo {
			if h.Devmajor < 0 || h.Devmajor >= 1<<12 || h.Devminor < 0 || h.Devminor >= 1<<20 {
				return invalid("device number %d:%d", h.Devmajor, h.Devminor)
			}
			dev = int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
		}
		// A character device 0:0 is what overlayfs takes for a whiteout: such a layer was made from an overlay's own
		// directory, and means one.
		err := l.replacing(parent, base, func() error { return unix.Mknodat(parent.fd, base, mode, dev) })
		if err != nil {
			return err
		}
		l.inodes++
		return l.setAttributesAt(parent, base, h)
	}
	return invalid("an entry of type %q", h.Typeflag)
}

// mkdir makes a directory, or gives one that is there its attributes.
func (l *layer) mkdir(parent *dir, base string, h *tar.Header) error {
	full := path.Join(parent.path, base)
	opaque := false
	err := unix.Mkdirat(parent.fd, base, 0o755)
	if errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if err := unix.Fstatat(parent.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = nil
		} else {
			opaque = isWhiteout(&st) // what it hid stays hidden
			err = l.replacing(parent, base, func() error { return unix.Mkdirat(parent.fd, base, 0o755) })
		}
	} else if err == nil {
		l.inodes++
		l.bytes += block
	}
	if err != nil {
		return err
	}
	d := l.dirs[full]
	if d == nil {
		fd, err := openDir(parent.fd, base)
		if err != nil {
			return err
		}
		d = &dir{fd: fd, path: full}
		l.dirs[full] = d
	}
	if opaque {
		if err := unix.Fsetxattr(d.fd, OpaqueXattr, []byte("y"), 0); err != nil {
			return err
		}
	}
	delete(l.implied, full)
	if err := l.setAttributes(d.fd, full, h); err != nil {
		return err
	}
	l.times = append(l.times, dirTime{full, timesOf(h)})
	return nil
}

func (l *layer) link(parent *dir, base, target string) error {
	name, err := clean(target)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", target, err)
	}
	if name == "" {
		return invalid("a hard link to the root")
	}
	dirName, targetBase := path.Split(name)
	from, err := l.dir(strings.TrimSuffix(dirName, "/"), false)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", target, err)
	}
	if from.path == parent.path && targetBase == base {
		return nil
	}
	if full := path.Join(parent.path, base); from.path == full || strings.HasPrefix(from.path, full+"/") {
		return invalid("a hard link to %q, which is below it", target)
	}
	// The target must be there before anything in its way is removed.
	var st unix.Stat_t
	switch err := unix.Fstatat(from.fd, targetBase, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENAMETOOLONG):
		return invalid("a hard link to %q, which the layer does not have", target)
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return invalid("a hard link to the directory %q", target)
	}
	return l.replacing(parent, base, func() error {
		return unix.Linkat(from.fd, targetBase, parent.fd, base, 0)
	})
}

// replacing runs make again when something is in its way, without that.
func (l *layer) replacing(parent *dir, base string, make func() error) error {
	err := make()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	full := path.Join(parent.path, base)
	if err := RemoveAll(parent.fd, base); err != nil {
		return err
	}
	for d := range l.implied {
		if d == full || strings.HasPrefix(d, full+"/") {
			delete(l.implied, d)
		}
	}
	for p, d := range l.dirs {
		if d != parent && (p == full || strings.HasPrefix(p, full+"/")) {
			unix.Close(d.fd)
			delete(l.dirs, p)
		}
	}
	return make()
}

// write copies size bytes. Blocks of zeros become holes: the tar of a sparse file has them as zeros, or does not have
// them and archive/tar gives zeros.
func (l *layer) write(ctx context.Context, fd int, size int64, content io.Reader) error {
	var offset int64
	var end int64 // of what is written
	for offset < size {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(content, l.buf[:min(int64(len(l.buf)), size-offset)])
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return readError(err)
		}
		for b := l.buf[:n]; len(b) > 0; {
			// Write what stands between two holes at once.
			k := 0
			for k < len(b) && !isHole(b[k:]) {
				k += min(hole, len(b)-k)
			}
			if k > 0 {
				if err := pwrite(fd, b[:k], offset); err != nil {
					return err
				}
				l.bytes += uint64(k+block-1) / block * block
				offset += int64(k)
				end = offset
				b = b[k:]
			}
			for len(b) > 0 && isHole(b) {
				offset += hole
				b = b[hole:]
			}
		}
	}
	if end < size {
		return unix.Ftruncate(fd, size)
	}
	return nil
}

var zeros [hole]byte

func isHole(b []byte) bool { return len(b) >= hole && string(b[:hole]) == string(zeros[:]) }

func pwrite(fd int, b []byte, offset int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, offset)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b, offset = b[n:], offset+int64(n)
	}
	return nil
}

func timesOf(h *tar.Header) [2]unix.Timespec {
	access := h.AccessTime
	if access.IsZero() {
		access = h.ModTime
	}
	return [2]unix.Timespec{timespec(access), timespec(h.ModTime)}
}

func timespec(t time.Time) unix.Timespec {
	if t.IsZero() {
		return unix.Timespec{}
	}
	// Beyond what any file system keeps, a time is not worth a failure.
	sec := min(max(t.Unix(), -1<<31), 1<<34-1)
	return unix.Timespec{Sec: sec, Nsec: int64(t.Nanosecond())}
}

// setDirTimes comes last, since what is put into a directory changes its time.
func (l *layer) setDirTimes() error {
	l.forgetDirs()
	for _, t := range l.times {
		d, err := l.dir(t.path, false)
		if err != nil || d.path != t.path {
			continue // a later entry took its place
		}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, procPath(d.fd), t.when[:], 0); err != nil {
			return fmt.Errorf("set times of %q: %w", t.path, err)
		}
		if len(l.dirs) > 128 {
			l.forgetDirs()
		}
	}
	return nil
}

// readError says whose fault it is that the tar cannot be read: the stream's own errors pass, the format's are the layer's.
func readError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("the layer is not a sound tar: %v", err)
	}
	return err
}

func diskError(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
	case errors.Is(err, unix.ENAMETOOLONG):
		return invalid("%v", err)
	}
	return err
}
