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
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
	"berth/internal/disk"
	"berth/internal/image/layertar"
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
	maxName   = 4096 // PATH_MAX
)

// Result says what a layer's directory holds.
type Result struct {
	Bytes  uint64 // on disk, rounded up to blocks
	Inodes uint64
	// Implied are the directories that the tar has no entry for but puts something into. They have mode 0755 and owner 0:0
	// here; in an image they should look as the layers below have them.
	Implied Implied
	// OwnRoot: the tar has an entry for the root directory. Without one, the root has mode 0755 and owner 0:0 here, and in
	// an image it should look as the layers below have it.
	OwnRoot bool
	// OpaqueRoot: the layer hides everything below it. Overlayfs does not look at the mark on a layer's root.
	OpaqueRoot bool
	// Entries and Length are what the layer has cost: Entries as Limits.Entries counts them, Length that of its tar
	// or of its files with their holes, whichever is more.
	Entries, Length uint64
	// Unsupported are extended attributes that the file system does not take, by name: the first ones, if there are many.
	Unsupported []string
}

// SetXattr sets an extended attribute of an open file, which may be open as a place only (O_PATH).
type SetXattr func(fd int, key string, value []byte) error

// Chown gives a file another owner: the one that has a name in an open directory, which is not followed if it is a
// link, or the open file itself where the name is empty.
type Chown func(fd int, name string, uid, gid int) error

// SystemChown is the kernel's, for a process that may give files away.
func SystemChown(fd int, name string, uid, gid int) error {
	if name == "" {
		return unix.Fchown(fd, uid, gid)
	}
	return unix.Fchownat(fd, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
}

// Calls are the system calls that not every process may make that unpacks layers.
type Calls struct {
	// SetXattr sets the attributes that only the host's administrator may set, and those of links, devices and fifos, for
	// a process that is not the administrator and has no /proc; nil: this process is and has.
	SetXattr SetXattr
	// Chown gives files their owners; nil: SystemChown.
	Chown Chown
}

// setXattr is one that works by the file's name in /proc, which leads to the file itself, even if that is a link.
func setXattr(fd int, key string, value []byte) error {
	return unix.Setxattr("/proc/self/fd/"+strconv.Itoa(fd), key, value, 0)
}

// Layer unpacks the tar that r yields into the directory root, which must be empty. What it made when it fails is left
// to the caller. A tar that cannot be unpacked safely or faithfully is errdefs.ErrInvalidArgument; a full disk, and
// a layer that is beyond the limits, are errdefs.ErrResourceExhausted. It reads r to its end of archive, not further.
func Layer(ctx context.Context, root *os.File, r io.Reader, limits Limits, calls Calls) (*Result, error) {
	if calls.SetXattr == nil {
		calls.SetXattr = setXattr
	}
	if calls.Chown == nil {
		calls.Chown = SystemChown
	}
	l := &layer{
		ctx:         ctx,
		tree:        dirtree.New[made](root),
		limits:      limits,
		trusted:     calls.SetXattr,
		chown:       calls.Chown,
		unsupported: map[string]struct{}{},
		buf:         make([]byte, copyBytes),
	}
	defer l.tree.Close()
	in := &stream{ctx: ctx, r: r, limit: limits.Bytes}
	if bound, ok := r.(*stream); ok {
		in = bound
	}
	l.in = in
	tr := tar.NewReader(in)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, l.readError(err)
		}
		if err := l.entry(h, tr); err != nil {
			return nil, fmt.Errorf("unpack %q: %w", shortened(h.Name), diskError(err))
		}
	}
	l.finish()
	if err := l.setDirTimes(); err != nil {
		return nil, diskError(err)
	}
	return &Result{
		Bytes: l.bytes, Inodes: l.inodes, Entries: l.work, Length: max(in.n, l.length),
		Implied:     l.implied(),
		OwnRoot:     l.tree.Root().Data.mentioned,
		OpaqueRoot:  l.tree.Root().Data.opaque,
		Unsupported: slices.Sorted(maps.Keys(l.unsupported)),
	}, nil
}

// shortened keeps errors and logs readable: a name in a tar may have a megabyte.
func shortened(name string) string {
	const most = 256
	if len(name) <= most {
		return name
	}
	return fmt.Sprintf("%s… (%d bytes)", name[:most], len(name))
}

// Bound makes a reader of a layer's tar that ends with a context, and with an error where the tar is longer
// than it may be. Layer does it by itself; it is for what stands behind the end of the archive.
//
// A recorder, if there is one, records what is read, and what Layer makes of it.
func Bound(ctx context.Context, r io.Reader, limits Limits, recorder *layertar.Recorder) io.Reader {
	return &stream{ctx: ctx, r: r, limit: limits.Bytes, recorder: recorder}
}

// stream is the reader that Bound returns. archive/tar reads on by itself where no entry comes, so its reader
// has to see the end of the context.
type stream struct {
	ctx   context.Context
	r     io.Reader
	n     uint64
	limit uint64
	err   error // why it has ended too early, where this is not the tar's fault; nil: it has not

	recorder *layertar.Recorder // nil: nobody wants the tar again
	content  bool               // what is read is the content of a file, which the layer's directory has
}

func (s *stream) Read(p []byte) (int, error) {
	if s.err = s.ctx.Err(); s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if s.err = spend(&s.n, uint64(n), s.limit, "the layer's tar has", KeyBytes, "bytes"); s.err != nil {
		return 0, s.err
	}
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		s.err = err
	}
	if s.recorder != nil && !s.content {
		s.recorder.Bytes(p[:n])
	}
	return n, err
}

// keeps runs write, which reads the content of a file into the layer's directory. The tar of a file with holes has
// a map of these as well, and is recorded as it is.
func (s *stream) keeps(name func() string, h *tar.Header, write func() error) error {
	if s.recorder == nil || h.Typeflag == tar.TypeGNUSparse || isSparse(h) {
		return write()
	}
	s.recorder.File(name(), h.Size)
	s.content = true
	defer func() { s.content = false }()
	return write()
}

func isSparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// layer is a layer that is being unpacked. It belongs to one goroutine.
type layer struct {
	ctx         context.Context
	in          *stream
	tree        *dirtree.Tree[made] // all directories of the layer
	limits      Limits
	trusted     SetXattr
	chown       Chown
	unsupported map[string]struct{}
	bytes       uint64 // on disk
	inodes      uint64
	length      uint64 // of all files, with holes
	work        uint64 // see Limits.Entries
	paths       uint64 // see Limits.PathMemory
	opaque      bool   // some directory is
	buf         []byte

	// last is the directory that was looked up last, by a path without links, so that the next lookup starts close to it.
	last     *dir
	lastPath string
}

// dir is a directory of the layer, or one that was.
type dir = dirtree.Dir[made]

// made says how the layer changes a directory.
type made struct {
	times [2]unix.Timespec // if it is mentioned
	// A directory is there if it is not gone, upLife is the life of the one above it, and that one is there:
	// a directory that is removed begins a new life, so that nobody has to visit what was in it.
	life, upLife uint32
	length       uint16 // of its path
	mentioned    bool   // by an entry of the tar
	implied      bool   // it is there without an entry
	direct       bool   // see ImpliedDir
	gone         bool
	full         bool // it, or something below it, has an entry that is no whiteout
	opaque       bool // it hides what lower layers have in it
	hidden       bool // one above it is opaque
	// Set at the end:
	there  bool
	listed bool // in Implied, for itself or for one below it
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

func (l *layer) entry(h *tar.Header, content io.Reader) error {
	if err := l.entries(1); err != nil {
		return err
	}
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
		return l.mention(l.tree.Root(), h)
	}
	parentPath, base := path.Split(name)
	parentPath = strings.TrimSuffix(parentPath, "/")
	for c := range strings.SplitSeq(parentPath, "/") {
		if strings.HasPrefix(c, metaPrefix) {
			return nil // below one of aufs' own directories
		}
		if strings.HasPrefix(c, whiteoutPrefix) {
			return invalid("a whiteout has nothing below it")
		}
	}
	if strings.HasPrefix(base, metaPrefix) && base != opaqueMarker {
		return nil
	}
	parent, err := l.dir(parentPath, true)
	if err != nil {
		return err
	}
	if base == opaqueMarker {
		return l.makeOpaque(parent)
	}
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return l.whiteout(parent, hidden)
	}
	if len(base) > unix.NAME_MAX {
		return invalid("a component of the name has %d bytes", len(base))
	}
	return l.create(parent, base, h, content)
}

// whiteout hides what lower layers have under a name. What this layer itself has there stays (layer.md, "Whiteouts").
func (l *layer) whiteout(parent *dir, name string) error {
	if name == "" || name == "." || name == ".." {
		return invalid("a whiteout of %q", name)
	}
	at, err := l.tree.FD(parent)
	if err != nil {
		return err
	}
	if d := l.child(parent, name); d != nil {
		d.Data.finish()
		if d.Data.full {
			return l.makeOpaque(d)
		}
		// It is there only for what it hides of the directory that is hidden now as a whole.
		if err := l.remove(d); err != nil {
			return err
		}
	}
	err = unix.Mknodat(at, name, unix.S_IFCHR, 0)
	if errors.Is(err, unix.EEXIST) {
		return nil // what is there hides the lower one
	}
	if err != nil {
		return err
	}
	l.inodes++
	return l.chown(at, name, 0, 0)
}

// remove removes a directory and what is in it.
func (l *layer) remove(d *dir) error {
	l.tree.Forget(d)
	d.Data.gone = true
	d.Data.life++
	l.last = nil
	at, err := l.tree.FD(d.Parent())
	if err != nil {
		return err
	}
	return dirtree.Remove(l.ctx, at, d.Name())
}

// fill notes that a directory, and so those above it, holds something of this layer.
func fill(d *dir) {
	for ; d != nil && !d.Data.full; d = d.Parent() {
		d.Data.full = true
	}
}

// makeOpaque makes a directory hide what lower layers have in it.
func (l *layer) makeOpaque(d *dir) error {
	d.Data.opaque, l.opaque = true, true
	if err := l.hide(d); err != nil {
		return err
	}
	fd, err := l.tree.FD(d)
	if err != nil {
		return err
	}
	return l.trusted(fd, OpaqueXattr, []byte("y"))
}

func (l *layer) create(parent *dir, base string, h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 {
		// Overlayfs takes it for a whiteout: such a layer was made from an overlay's own directory, and means one.
		return l.whiteout(parent, base)
	}
	if h.Typeflag == tar.TypeLink {
		return l.link(parent, base, h.Linkname)
	}
	fill(parent)
	if h.Typeflag == tar.TypeDir {
		return l.mkdir(parent, base, h)
	}
	at, err := l.tree.FD(parent)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		if err := l.size(h.Size); err != nil {
			return err
		}
		var fd int
		err := l.replacing(parent, base, func() (err error) {
			fd, err = unix.Openat(at, base,
				unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
			return err
		})
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		l.inodes++
		err = l.in.keeps(func() string { return parent.PathOf(base) }, h, func() error {
			return l.write(fd, h.Size, content)
		})
		if err != nil {
			return err
		}
		return l.setAttributes(fd, h)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= maxName {
			return invalid("a symbolic link to a name of %d bytes", len(h.Linkname))
		}
		err := l.replacing(parent, base, func() error { return unix.Symlinkat(h.Linkname, at, base) })
		if err != nil {
			return err
		}
		l.inodes++
		return l.setAttributesAt(at, base, h)
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
		err := l.replacing(parent, base, func() error { return unix.Mknodat(at, base, mode, dev) })
		if err != nil {
			return err
		}
		l.inodes++
		return l.setAttributesAt(at, base, h)
	}
	return invalid("an entry of type %q", h.Typeflag)
}

// mkdir makes a directory, or gives one that is there its attributes.
func (l *layer) mkdir(parent *dir, base string, h *tar.Header) error {
	d := l.child(parent, base)
	if d == nil {
		at, err := l.tree.FD(parent)
		if err != nil {
			return err
		}
		replaced := false
		err = l.replacing(parent, base, func() error {
			err := unix.Mkdirat(at, base, 0o755)
			replaced = replaced || errors.Is(err, unix.EEXIST)
			return err
		})
		if err != nil {
			return err
		}
		if d, err = l.made(parent, base); err != nil {
			return err
		}
		l.inodes++
		if err := l.disk(block); err != nil {
			return err
		}
		if replaced {
			// What stood here hid the lower directory, and what was in that.
			if err := l.makeOpaque(d); err != nil {
				return err
			}
		}
	}
	return l.mention(d, h)
}

// mention gives a directory what the tar's entry says of it.
func (l *layer) mention(d *dir, h *tar.Header) error {
	fd, err := l.tree.FD(d)
	if err != nil {
		return err
	}
	if err := l.setAttributes(fd, h); err != nil {
		return err
	}
	// Where something was put into it before, a lower layer's link would have led that elsewhere.
	d.Data.finish()
	fill(d)
	d.Data.mentioned = true
	d.Data.times = timesOf(h) // set at the end: what is put into a directory changes its time
	return nil
}

func (l *layer) link(parent *dir, base, target string) error {
	name, err := clean(target)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", shortened(target), err)
	}
	if name == "" {
		return invalid("a hard link to the root")
	}
	dirName, targetBase := path.Split(name)
	from, err := l.dir(strings.TrimSuffix(dirName, "/"), false)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", target, err)
	}
	if d := l.child(parent, base); d != nil && within(from, d) {
		return invalid("a hard link to %q, which is below it", target)
	}
	if l.child(from, targetBase) != nil {
		return invalid("a hard link to the directory %q", target)
	}
	// The parent last: its descriptor is the one that replacing uses again.
	fromFD, err := l.tree.FD(from)
	if err != nil {
		return err
	}
	at, err := l.tree.FD(parent)
	if err != nil {
		return err
	}
	// The target must be there before anything in its way is removed.
	var st unix.Stat_t
	switch err := unix.Fstatat(fromFD, targetBase, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENAMETOOLONG):
		return invalid("a hard link to %q, which the layer does not have", target)
	case err != nil:
		return err
	}
	if isWhiteout(&st) {
		return l.whiteout(parent, base)
	}
	if from == parent && targetBase == base {
		return nil
	}
	fill(parent)
	err = l.replacing(parent, base, func() error { return unix.Linkat(fromFD, targetBase, at, base, 0) })
	if errors.Is(err, unix.EMLINK) {
		return fmt.Errorf("the file system takes no further hard link to %q, which has %d names: %w: %w",
			target, st.Nlink, err, errdefs.ErrResourceExhausted)
	}
	return err
}

// within tells whether a directory is another one or below it.
func within(d, top *dir) bool {
	for ; d != nil; d = d.Parent() {
		if d == top {
			return true
		}
	}
	return false
}

// replacing runs make again when something is in its way, without that.
func (l *layer) replacing(parent *dir, base string, make func() error) error {
	err := make()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if d := l.child(parent, base); d != nil {
		if l.in.recorder != nil && d.Data.full {
			l.in.recorder.Replaced()
		}
		err = l.remove(d)
	} else {
		var at int
		if at, err = l.tree.FD(parent); err == nil {
			l.noteReplaced(at, base)
			err = dirtree.Remove(l.ctx, at, base)
		}
	}
	if err != nil {
		return err
	}
	return make()
}

// noteReplaced records that a file goes whose content the tar has.
func (l *layer) noteReplaced(at int, base string) {
	var st unix.Stat_t
	if l.in.recorder != nil && unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 0 {
		l.in.recorder.Replaced()
	}
}

// write copies size bytes. Blocks of zeros become holes: the tar of a sparse file has them as zeros, or does not have
// them and archive/tar gives zeros.
func (l *layer) write(fd int, size int64, content io.Reader) error {
	var offset int64
	var end int64 // of what is written
	for offset < size {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(content, l.buf[:min(int64(len(l.buf)), size-offset)])
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return l.readError(err)
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
				if err := l.disk(uint64(k+block-1) / block * block); err != nil {
					return err
				}
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
	n := 0
	for d := range l.tree.All() {
		if n++; n%1024 == 0 && l.ctx.Err() != nil {
			return l.ctx.Err()
		}
		if !d.Data.mentioned || !d.Data.there {
			continue
		}
		fd, err := l.tree.FD(d)
		if err == nil {
			err = SetTimes(fd, &d.Data.times)
		}
		if err != nil {
			return fmt.Errorf("set times of %q: %w", d.Path(), err)
		}
	}
	return nil
}

// readError says whose fault it is that the tar cannot be read: the stream's own errors pass, and all else that
// archive/tar says is the layer's fault.
func (l *layer) readError(err error) error {
	if l.in.err != nil {
		return l.in.err
	}
	return invalid("the layer is not a sound tar: %v", err)
}

func diskError(err error) error {
	if errors.Is(err, unix.ENAMETOOLONG) {
		return invalid("%v", err)
	}
	return disk.Exhausted(err)
}
