package variant

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
	"berth/internal/disk"
	"berth/internal/fileattr"
	"berth/internal/image/unpack"
	"berth/internal/sparse"
)

// Request is a layer and where its directories go. All directories are open for reading.
type Request struct {
	Layer     *os.File       // the layer's directory, which is complete and is not changed
	Implied   unpack.Implied // as unpacking the layer has said
	Placement *Placement     // as Plan has said
	// Home is where the variant is made under Name, if the layer needs one. It is on the layer's mount: hard links
	// do not cross mounts.
	Home   *os.File
	Name   string
	Xattrs fileattr.Xattrs
	Chown  unpack.Chown // nil: unpack.SystemChown
}

// Result is plain data, so that it can come from another process.
type Result struct {
	// Bytes, rounded up to blocks, and Inodes are those of files that had to be copied, and of directories that the layer
	// does not have. All other files are the layer's own.
	Bytes, Inodes uint64
}

// Make makes a layer's variant, for Check to look at. What it made when it fails is left to the caller.
//
// Errors: errdefs.ErrInvalidArgument for a layer that cannot be meant, errdefs.ErrResourceExhausted for a full disk.
func Make(ctx context.Context, r Request) (*Result, error) {
	nodes, err := r.Placement.nodes(r.Implied)
	if err != nil {
		return nil, err
	}
	if err := unix.Mkdirat(int(r.Home.Fd()), r.Name, 0o755); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: r.Name, Err: err}
	}
	fd, err := unix.Openat(int(r.Home.Fd()), r.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: r.Name, Err: err}
	}
	root := os.NewFile(uintptr(fd), r.Name)
	defer root.Close()
	m := &maker{
		ctx: ctx, xattrs: r.Xattrs, chown: r.Chown, nodes: nodes, out: dirtree.New[made](root),
		in: dirtree.New[source](r.Layer), copies: map[uint64]copied{},
	}
	defer m.out.Close()
	defer m.in.Close()
	if m.chown == nil {
		m.chown = unpack.SystemChown
	}
	if err := m.make(); err != nil {
		return nil, disk.Exhausted(err)
	}
	return &m.result, nil
}

// maker makes the tree of a variant.
type maker struct {
	ctx    context.Context
	xattrs fileattr.Xattrs
	chown  unpack.Chown
	nodes  map[node]*placed
	in     *dirtree.Tree[source]
	out    *dirtree.Tree[made]
	copies map[uint64]copied // by inode of the layer's file
	dirs   int               // of the layer
	result Result
}

// source is a directory of the layer: where it goes.
type source struct {
	to *outDir
	// placed is set for what is on the list, and for the root.
	placed *placed
}

// made is a directory of the variant: where it comes from.
type made struct {
	// own is the layer's directory that says how this one looks. Without one it looks like the directory below,
	// and without that plain.
	own  *inDir
	like *Look
	// from counts the layer's directories that are put together here.
	from   int
	opaque bool
}

type (
	inDir  = dirtree.Dir[source]
	outDir = dirtree.Dir[made]
)

const block = 4096 // what the smallest file takes on disk

// copied is a copy that was made of a file, since it cannot have another name.
type copied struct {
	in   *outDir
	name string
}

func (m *maker) make() error {
	from, to := m.in.Root(), m.out.Root()
	from.Data = source{to: to, placed: m.nodes[node{}]}
	to.Data = made{own: from, from: 1}
	if look := from.Data.placed.at.look; look != nil {
		to.Data.own, to.Data.like = nil, look
	}
	fd, err := m.in.FD(from)
	if err != nil {
		return err
	}
	if err := m.markOpaque(fd, to); err != nil {
		return err
	}
	err = m.in.Walk(m.ctx,
		dirtree.Walk[source]{Visit: func(in *inDir, fd int, name string, st *unix.Stat_t) (*inDir, error) {
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return nil, m.file(in, fd, name, st)
			}
			return m.directory(in, name)
		}})
	if err != nil {
		return err
	}
	if more := m.out.Len() - m.dirs; more > 0 { // on the way to where links lead
		m.result.Inodes += uint64(more)
		m.result.Bytes += uint64(more) * block
	}
	return m.dress()
}

// directory puts a directory of the layer into its place.
func (m *maker) directory(in *inDir, name string) (*inDir, error) {
	d := in.Below(name)
	m.dirs++
	if in.Data.placed != nil {
		d.Data.placed = m.nodes[node{in.Data.placed, name}]
	}
	var to *outDir
	var err error
	own := d
	if p := d.Data.placed; p != nil && p.at != nil {
		own = nil
		to, err = m.at(p.at)
	} else {
		to, err = m.under(in.Data.to, name)
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", d.Path(), err)
	}
	d.Data.to = to
	return d, m.join(d, own)
}

// join makes a directory of the layer a part of one of the variant's.
func (m *maker) join(d, own *inDir) error {
	fd, err := m.in.FD(d)
	if err != nil {
		return err
	}
	to := d.Data.to
	to.Data.from++
	if to.Data.from > 1 && (to.Data.opaque || opaque(m.xattrs, fd)) {
		return refuse("%q: the layer hides what is below it, and puts something into it by way of a link as well", to.Path())
	}
	if err := m.markOpaque(fd, to); err != nil {
		return err
	}
	switch {
	case own == nil:
	case to.Data.own == nil:
		to.Data.own = own
	default:
		same, err := m.alike(own, to.Data.own)
		if err != nil {
			return err
		}
		if !same {
			return refuse("%q and %q of the layer are one directory in the image, and have different attributes",
				own.Path(), to.Data.own.Path())
		}
	}
	return nil
}

func (m *maker) markOpaque(from int, to *outDir) error {
	if !opaque(m.xattrs, from) {
		return nil
	}
	fd, err := m.out.FD(to)
	if err != nil {
		return err
	}
	to.Data.opaque = true
	return m.xattrs.Set(fd, unpack.OpaqueXattr, []byte("y"))
}

func (m *maker) alike(a, b *inDir) (bool, error) {
	x, err := m.attributes(a)
	if err != nil {
		return false, err
	}
	y, err := m.attributes(b)
	if err != nil {
		return false, err
	}
	return x.Equal(y), nil
}

func (m *maker) attributes(d *inDir) (*fileattr.Attributes, error) {
	fd, err := m.in.FD(d)
	if err != nil {
		return nil, err
	}
	return m.xattrs.Of(fd)
}

// at is the directory of a place, made with those above it where they are not there.
func (m *maker) at(p *spot) (*outDir, error) {
	// Not by recursion: a place can be two thousand directories deep.
	var way []*spot
	for ; p.parent != nil && p.out == nil; p = p.parent {
		way = append(way, p)
	}
	d := p.out
	if d == nil {
		d = m.out.Root()
	}
	for i := len(way) - 1; i >= 0; i-- {
		next, err := m.under(d, way[i].name)
		if err != nil {
			return nil, err
		}
		if next.Data.like == nil {
			next.Data.like = way[i].look
		}
		way[i].out, d = next, next
	}
	return d, nil
}

// under is a directory in another one, made if it is not there.
func (m *maker) under(parent *outDir, name string) (*outDir, error) {
	if d := m.out.Child(parent, name); d != nil {
		return d, nil
	}
	fd, err := m.out.FD(parent)
	if err != nil {
		return nil, err
	}
	err = unix.Mkdirat(fd, name, 0o700)
	if errors.Is(err, unix.EEXIST) {
		return nil, refuse("in the image it is in %q, where the layer has a file in the way of a directory",
			parent.PathOf(name))
	}
	if err != nil {
		return nil, fmt.Errorf("make directory %q: %w", parent.PathOf(name), err)
	}
	return m.out.Add(parent, name), nil
}

// file gives a file of the layer its name in the variant.
func (m *maker) file(in *inDir, fd int, name string, st *unix.Stat_t) error {
	to := in.Data.to
	at, err := m.out.FD(to)
	if err != nil {
		return err
	}
	err = unix.Linkat(fd, name, at, name, 0)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST):
		var there unix.Stat_t
		if isWhiteout(st) && unix.Fstatat(at, name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil && isWhiteout(&there) {
			return nil // both hide the same
		}
		return refuse("%q of the layer is %q in the image, which the layer has by another path as well",
			in.PathOf(name), to.PathOf(name))
	case errors.Is(err, unix.EMLINK) && st.Mode&unix.S_IFMT == unix.S_IFREG:
		err = m.copy(fd, name, st, to)
	}
	if err != nil {
		return fmt.Errorf("link %q: %w", in.PathOf(name), err)
	}
	return nil
}

// copy makes a second file of one that has as many names as the file system allows. Further names become names
// of the copy.
func (m *maker) copy(from int, name string, st *unix.Stat_t, to *outDir) error {
	at, err := m.out.FD(to)
	if err != nil {
		return err
	}
	if c, ok := m.copies[st.Ino]; ok {
		first, err := m.out.FD(c.in)
		if err != nil {
			return err
		}
		if at, err = m.out.FD(to); err != nil {
			return err
		}
		if err = unix.Linkat(first, c.name, at, name, 0); !errors.Is(err, unix.EMLINK) {
			return err
		}
	}
	fd, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	in := os.NewFile(uintptr(fd), name)
	defer in.Close()
	if fd, err = unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC,
		0o600); err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), name)
	defer out.Close()
	n, err := sparse.Copy(m.ctx, out, in)
	if err != nil {
		return err
	}
	look, err := lookOf(m.xattrs, int(in.Fd()))
	if err != nil {
		return err
	}
	m.copies[st.Ino] = copied{to, name}
	m.result.Inodes++
	m.result.Bytes += uint64(n+block-1) / block * block
	return look.apply(m.xattrs, int(out.Fd()))
}

// dress gives all directories their attributes and times: what was put into them has changed their times.
func (m *maker) dress() error {
	n := 0
	for d := range m.out.All() {
		if n++; n%256 == 0 && m.ctx.Err() != nil {
			return m.ctx.Err()
		}
		if err := m.dressOne(d); err != nil {
			return fmt.Errorf("%q: %w", d.Path(), err)
		}
	}
	return nil
}

func (m *maker) dressOne(d *outDir) error {
	to, err := m.out.FD(d)
	if err != nil {
		return err
	}
	look := d.Data.like
	if d.Data.own != nil {
		like, err := m.in.FD(d.Data.own)
		if err != nil {
			return err
		}
		if look, err = lookOf(m.xattrs, like); err != nil {
			return err
		}
	}
	if look == nil {
		return errors.Join(m.chown(to, "", 0, 0), unix.Fchmod(to, 0o755))
	}
	return look.apply(m.xattrs, to)
}
