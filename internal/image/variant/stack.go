package variant

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
	"berth/internal/fileattr"
	"berth/internal/image/unpack"
)

type (
	tree = dirtree.Tree[struct{}]
	dir  = dirtree.Dir[struct{}]
)

// stack looks up what overlayfs would show of layers that are stacked, by hand: it is needed for a few directories,
// and a mount would have to be cleaned up after a crash.
type stack struct {
	xattrs fileattr.Xattrs
	layers []*tree // top first
	// lookups are how many directories were looked into; limit, if not 0, is how many may be.
	lookups, limit uint64
	// steps is how many more of them may be on the way of links, counted for each layer.
	steps int
}

// maxSteps bounds what following links may cost: a layer of a megabyte can ask for a million links of 2000 components
// each, in a hundred layers. An image that installs a distribution through links needs some thousands.
const maxSteps = 1 << 18

// step pays for a lookup in a place, on the way of a link: from what the layer may take, and from what all layers may.
func (s *stack) step(at *place) error {
	if err := s.pay(at); err != nil {
		return err
	}
	if s.steps -= 1 + len(at.dirs); s.steps < 0 {
		return refuse("following the links of the layers below takes more than %d lookups", maxSteps)
	}
	return nil
}

// KeyLookups is the key of the configuration that bounds the lookups of an image's layers together.
const KeyLookups = "max_image_lookups"

// pay pays for a lookup in a place.
func (s *stack) pay(at *place) error {
	if s.lookups += 1 + uint64(len(at.dirs)); s.limit > 0 && s.lookups > s.limit {
		return &unpack.LimitError{What: "fitting the layers of the image to one another takes", Key: KeyLookups,
			Limit: s.limit, Unit: "lookups"}
	}
	return nil
}

// descriptors is how many of a stack's directories stay open, in all its layers together.
const descriptors = 256

func newStack(x fileattr.Xattrs, layers ...*os.File) *stack {
	s := &stack{xattrs: x, steps: maxSteps}
	for _, l := range layers {
		t := dirtree.New[struct{}](l)
		t.Keep = max(descriptors/max(len(layers), 1), 4)
		s.layers = append(s.layers, t)
	}
	return s
}

func (s *stack) close() {
	for _, t := range s.layers {
		t.Close()
	}
}

// part is a directory of one layer.
type part struct {
	layer int
	dir   *dir
}

// place is where something is in the image: a path without links. Several of them may be one path.
type place struct {
	parent *place // nil: the root
	name   string
	length int // of the path
	// dirs are the directories that the layers have there, merged, the top one first. Empty: they have none.
	dirs []part
	// by is the directory that the place was found for, as its own or on the way of its link.
	by *planned
}

func (s *stack) root() *place {
	p := &place{}
	for i, t := range s.layers {
		p.dirs = append(p.dirs, part{i, t.Root()})
	}
	return p
}

func (p *place) path() string {
	if p.parent == nil {
		return ""
	}
	b := make([]byte, p.length)
	for at, end := p, p.length; at.parent != nil; at = at.parent {
		end -= len(at.name)
		copy(b[end:], at.name)
		if end > 0 {
			end--
			b[end] = '/'
		}
	}
	return string(b)
}

// in is the place of a name in this one.
func (p *place) in(name string, dirs []part) (*place, error) {
	length := len(name)
	if p.parent != nil {
		length += p.length + 1
	}
	if length >= unix.PathMax {
		return nil, refuse("a path has %d bytes: %.256q…", length, p.path())
	}
	return &place{parent: p, name: name, length: length, dirs: dirs}, nil
}

type kind int

const (
	missing kind = iota
	directory
	symlink
	other
)

// found is the entry of a stack under a name.
type found struct {
	kind   kind
	dirs   []part // of a directory: all that are merged, the top one first
	target string // of a symbolic link
	// opaque: the directory of the top layer hides those below.
	opaque bool
}

// look looks up a name in a place, without following a link.
func (s *stack) look(at *place, name string) (found, error) {
	var f found
	for i, p := range at.dirs {
		t := s.layers[p.layer]
		fd, err := t.FD(p.dir)
		if err != nil {
			return f, err
		}
		var st unix.Stat_t
		err = unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENAMETOOLONG) {
			continue
		}
		if err != nil {
			return f, fmt.Errorf("look up %q: %w", p.dir.PathOf(name), err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			sub := part{p.layer, p.dir.Below(name)}
			f.kind, f.dirs = directory, append(f.dirs, sub)
			// The mark of the last one hides nothing.
			if last := i == len(at.dirs)-1; last && p.layer > 0 {
				return f, nil
			}
			opaque, err := s.isOpaque(sub)
			if err != nil {
				return f, err
			}
			if opaque {
				f.opaque = p.layer == 0
				return f, nil
			}
			continue
		}
		if f.kind == directory || isWhiteout(&st) {
			return f, nil
		}
		f.kind = other
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			f.kind = symlink
			f.target, err = readlink(fd, name)
		}
		return f, err
	}
	return f, nil
}

func isWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

func readlink(at int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, buf)
	if err != nil {
		return "", fmt.Errorf("read link %q: %w", name, err)
	}
	return string(buf[:n]), nil
}

func (s *stack) isOpaque(p part) (bool, error) {
	fd, err := s.layers[p.layer].FD(p.dir)
	if err != nil {
		return false, err
	}
	return opaque(s.xattrs, fd), nil
}

func opaque(x fileattr.Xattrs, fd int) bool {
	var b [2]byte
	n, err := x.Get(fd, unpack.OpaqueXattr, b[:])
	return err == nil && n == 1 && b[0] == 'y'
}

// errNowhere is a link that leads to no directory.
var errNowhere = errors.New("the link leads to no directory")

// follow expands a link in a place, inside the stack. What is missing on the way counts as a directory
// that will be made. seen, if not nil, is called with each directory on the way.
func (s *stack) follow(at *place, target string, by *planned, seen func(at *place, f found) error) (*place, error) {
	if path.IsAbs(target) {
		at = top(at)
	}
	for links, rest := 1, target; rest != ""; {
		var c string
		c, rest, _ = strings.Cut(rest, "/")
		if err := s.step(at); err != nil {
			return nil, err
		}
		switch c {
		case "", ".":
			continue
		case "..":
			if at.parent != nil {
				if len(at.dirs) == 0 {
					return nil, errNowhere // nobody can go up from where nothing is
				}
				at = at.parent
			}
			continue
		}
		f, err := s.look(at, c)
		if err != nil {
			return nil, err
		}
		switch f.kind {
		case other:
			return nil, errNowhere
		case symlink:
			if links++; links > maxLinks {
				return nil, errNowhere
			}
			if path.IsAbs(f.target) {
				at = top(at)
			}
			rest = f.target + "/" + rest
			continue
		}
		if at, err = at.in(c, f.dirs); err != nil {
			return nil, err
		}
		at.by = by
		if seen != nil {
			if err := seen(at, f); err != nil {
				return nil, err
			}
		}
	}
	return at, nil
}

// maxLinks is how many links a path may have, as in the kernel.
const maxLinks = 40

func top(p *place) *place {
	for p.parent != nil {
		p = p.parent
	}
	return p
}
