package dirtree

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// keep is how many directories of a tree stay open, where its user says nothing.
const keep = 128

// chunk is how long a path the kernel resolves at once (PATH_MAX, with the NUL at the end).
const chunk = 4095

// Tree is an open directory and what is known of the directories beneath it. It belongs to one goroutine.
type Tree[T any] struct {
	// Keep is how many directories stay open beside the root; 0: some hundred.
	Keep int
	// Flags are further flags for opening directories, such as unix.O_NOATIME.
	Flags uint64
	// Mounts has the tree go on in what is mounted in it. Else that is an error, unix.EXDEV.
	Mounts bool

	root Dir[T]
	kids map[kid[T]]*Dir[T]
	// The open directories, in the order of their last use. front and back are nil when there is none.
	front, back *handle[T]
	open        int
	path        []byte
}

// Dir is a directory of a tree. Data is its user's.
type Dir[T any] struct {
	Data   T
	parent *Dir[T]
	name   string
	handle *handle[T] // nil: it is not open
	ino    uint64     // of the directory that was opened last; 0: none was
	// Children that were added, the newest first.
	first, next *Dir[T]
}

type kid[T any] struct {
	parent *Dir[T]
	name   string
}

// handle is an open directory's place in the order of use.
type handle[T any] struct {
	dir          *Dir[T]
	fd           int
	newer, older *handle[T]
}

// New makes a tree of a directory, whose descriptor stays the caller's.
func New[T any](root *os.File) *Tree[T] {
	t := &Tree[T]{}
	t.root.handle = &handle[T]{dir: &t.root, fd: int(root.Fd())} // never in the order of use
	return t
}

// Root is the directory that the tree was made of.
func (t *Tree[T]) Root() *Dir[T] { return &t.root }

// Close closes all descriptors but the root's. The tree can be used further.
func (t *Tree[T]) Close() {
	for t.back != nil {
		t.shut(t.back)
	}
}

// Below is a directory in another one. The tree does not keep it.
func (d *Dir[T]) Below(name string) *Dir[T] { return &Dir[T]{parent: d, name: name} }

// Add makes the tree know a directory in another one.
func (t *Tree[T]) Add(parent *Dir[T], name string) *Dir[T] {
	if t.kids == nil {
		t.kids = map[kid[T]]*Dir[T]{}
	}
	d := &Dir[T]{parent: parent, name: name, next: parent.first}
	parent.first = d
	t.kids[kid[T]{parent, name}] = d
	return d
}

// Child is a directory that was added; nil: there is none of this name.
func (t *Tree[T]) Child(parent *Dir[T], name string) *Dir[T] { return t.kids[kid[T]{parent, name}] }

// Children are the directories that were added to this one, in no order that means anything.
func (d *Dir[T]) Children(yield func(*Dir[T]) bool) {
	for c := d.first; c != nil; c = c.next {
		if !yield(c) {
			return
		}
	}
}

// All are the root and the directories that were added, each before its children.
func (t *Tree[T]) All() iter.Seq[*Dir[T]] {
	return func(yield func(*Dir[T]) bool) {
		for d := &t.root; d != nil; {
			if !yield(d) {
				return
			}
			if d.first != nil {
				d = d.first
				continue
			}
			for d != nil && d.next == nil {
				d = d.parent
			}
			if d != nil {
				d = d.next
			}
		}
	}
}

// Len is how many directories were added.
func (t *Tree[T]) Len() int { return len(t.kids) }

// Name is a directory's name in its parent; the root's is empty.
func (d *Dir[T]) Name() string { return d.name }

// Parent is nil for the root.
func (d *Dir[T]) Parent() *Dir[T] { return d.parent }

// Path is relative to the root, whose own is empty. It is put together at each call.
func (d *Dir[T]) Path() string { return d.PathOf("") }

// PathOf is the path of a name in the directory.
func (d *Dir[T]) PathOf(name string) string {
	n := len(name)
	for at := d; at.parent != nil; at = at.parent {
		n += len(at.name) + 1
	}
	if name == "" && n > 0 {
		n--
	}
	path := make([]byte, n)
	put := func(name string) {
		n -= len(name)
		copy(path[n:], name)
		if n > 0 {
			n--
			path[n] = '/'
		}
	}
	if name != "" {
		put(name)
	}
	for at := d; at.parent != nil; at = at.parent {
		put(at.name)
	}
	return string(path)
}

// FD is an open descriptor of a directory, which stays the tree's. It is good until as many other directories
// have been asked for as stay open. A link in the place of the directory, or of one above it, is an error:
// unix.ELOOP or unix.ENOTDIR.
func (t *Tree[T]) FD(d *Dir[T]) (int, error) {
	if d.handle != nil {
		t.touch(d.handle)
		return d.handle.fd, nil
	}
	fd, err := t.climb(d), error(nil)
	if fd < 0 {
		fd, err = t.reach(d)
	}
	if err != nil {
		return -1, fmt.Errorf("open directory %q: %w", d.Path(), err)
	}
	d.handle = &handle[T]{dir: d, fd: fd}
	t.pushFront(d.handle)
	if most := cmp.Or(t.Keep, keep); t.open > most {
		t.shut(t.back)
	}
	return fd, nil
}

// climb opens a directory that was open before from the one that was used last, if that is in it. On the way out
// of a deep tree each directory would otherwise be looked up from far above. Whoever has moved the lower one meanwhile
// does not lead away: it has to be the same directory. -1: it has to be reached.
func (t *Tree[T]) climb(d *Dir[T]) int {
	from := t.front
	if from == nil || from.dir.parent != d || d.ino == 0 {
		return -1
	}
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | t.Flags,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	fd, err := unix.Openat2(from.fd, "..", &how)
	if err != nil {
		return -1
	}
	var st, below unix.Stat_t
	if unix.Fstat(fd, &st) != nil || unix.Fstat(from.fd, &below) != nil || st.Ino != d.ino || st.Dev != below.Dev {
		unix.Close(fd)
		return -1
	}
	return fd
}

// reach opens a directory from the closest open one above it.
func (t *Tree[T]) reach(d *Dir[T]) (int, error) {
	var names []string
	at := d
	for ; at.handle == nil; at = at.parent {
		names = append(names, at.name)
	}
	from, owned := at.handle.fd, false
	for i := len(names) - 1; i >= 0; {
		t.path = append(t.path[:0], names[i]...)
		for i--; i >= 0 && len(t.path)+1+len(names[i]) <= chunk; i-- {
			t.path = append(append(t.path, '/'), names[i]...)
		}
		fd, err := t.openDir(from, string(t.path))
		if owned {
			unix.Close(from)
		}
		if err != nil {
			return -1, err
		}
		from, owned = fd, true
	}
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		unix.Close(from)
		return -1, err
	}
	d.ino = st.Ino
	return from, nil
}

// Forget closes a directory's descriptor, if it is open, and forgets which directory it was. It is needed where another
// directory takes its place: what was removed together with the old one may be open yet, and would lead up to the old
// one.
func (t *Tree[T]) Forget(d *Dir[T]) {
	if d.parent == nil {
		return
	}
	d.ino = 0
	if d.handle != nil {
		t.shut(d.handle)
	}
}

func (t *Tree[T]) shut(h *handle[T]) {
	t.unlink(h)
	h.dir.handle = nil
	unix.Close(h.fd)
}

func (t *Tree[T]) touch(h *handle[T]) {
	if h == t.front || h.dir.parent == nil {
		return
	}
	t.unlink(h)
	t.pushFront(h)
}

func (t *Tree[T]) unlink(h *handle[T]) {
	if h.newer != nil {
		h.newer.older = h.older
	} else {
		t.front = h.older
	}
	if h.older != nil {
		h.older.newer = h.newer
	} else {
		t.back = h.newer
	}
	h.newer, h.older = nil, nil
	t.open--
}

func (t *Tree[T]) pushFront(h *handle[T]) {
	h.older = t.front
	if t.front != nil {
		t.front.newer = h
	}
	t.front = h
	if t.back == nil {
		t.back = h
	}
	t.open++
}

func (t *Tree[T]) openDir(at int, name string) (int, error) {
	resolve := uint64(beneath)
	if t.Mounts {
		resolve &^= unix.RESOLVE_NO_XDEV
	}
	return openBelow(at, name, t.Flags, resolve)
}

// beneath keeps a path in the open directory and on its mount, and has no link in it.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// openDir opens a directory by a path that neither leaves the open one, nor its mount, nor has a link in it.
func openDir(at int, name string, flags uint64) (int, error) {
	return openBelow(at, name, flags, beneath)
}

func openBelow(at int, name string, flags, resolve uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | flags,
		Resolve: resolve,
	}
	for {
		fd, err := unix.Openat2(at, name, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		return fd, err
	}
}
