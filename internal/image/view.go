package image

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/image/unpack"
)

// view is what overlayfs would show of a stack of layers, looked up by hand: it is needed while an image is pulled, for
// a few directories, and a mount would have to be cleaned up after a crash.
type view struct {
	dirs []string // absolute, top first
}

// node is what a view has under a path.
type node struct {
	kind kind
	path string   // absolute, of the layer that it comes from: attributes are there
	dirs []string // of a directory: all that are merged, top first
}

type kind int

const (
	missing kind = iota
	directory
	symlink
	other
)

func (v view) root() node { return node{kind: directory, dirs: v.dirs} }

// child looks up one name in a directory, without following a link.
func (n node) child(name string) (node, error) {
	var found node
	for _, d := range n.dirs {
		at := filepath.Join(d, name)
		var st unix.Stat_t
		err := unix.Lstat(at, &st)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return node{}, fmt.Errorf("look up %s: %w", at, err)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if found.kind == missing {
				found = node{kind: directory, path: at}
			}
			found.dirs = append(found.dirs, at)
			if isOpaque(at) {
				return found, nil
			}
			continue
		case unix.S_IFCHR:
			if st.Rdev == 0 {
				return found, nil // a whiteout
			}
		}
		if found.kind == missing {
			found = node{kind: other, path: at}
			if st.Mode&unix.S_IFMT == unix.S_IFLNK {
				found.kind = symlink
			}
		}
		return found, nil
	}
	return found, nil
}

func isOpaque(dir string) bool {
	var b [1]byte
	n, err := unix.Lgetxattr(dir, unpack.OpaqueXattr, b[:])
	return err == nil && n == 1 && b[0] == 'y'
}

// lookup finds a path whose parents must be directories: a link in them counts as missing.
func (v view) lookup(name string) (node, error) {
	n := v.root()
	for c := range strings.SplitSeq(name, "/") {
		if n.kind != directory {
			return node{}, nil
		}
		var err error
		if n, err = n.child(c); err != nil {
			return node{}, err
		}
	}
	return n, nil
}

// resolve expands the links in a path, inside the view, and returns the path without them; what is missing is kept as it
// is. ok is false for a loop, and for a path through something that is no directory.
func (v view) resolve(name string) (real string, ok bool, err error) {
	rest := strings.Split(name, "/")
	var done []string
	for links := 0; len(rest) > 0; {
		c := rest[0]
		rest = rest[1:]
		switch c {
		case "", ".":
			continue
		case "..":
			if len(done) > 0 {
				done = done[:len(done)-1]
			}
			continue
		}
		n, err := v.lookup(strings.Join(append(done[:len(done):len(done)], c), "/"))
		if err != nil {
			return "", false, err
		}
		switch n.kind {
		case symlink:
			if links++; links > 40 {
				return "", false, nil
			}
			buf := make([]byte, unix.PathMax)
			k, err := unix.Readlink(n.path, buf)
			if err != nil {
				return "", false, fmt.Errorf("read link %s: %w", n.path, err)
			}
			target := string(buf[:k])
			if path.IsAbs(target) {
				done = nil
			}
			rest = append(strings.Split(target, "/"), rest...)
		case other:
			return "", false, nil
		default:
			done = append(done[:len(done):len(done)], c)
		}
	}
	return strings.Join(done, "/"), true, nil
}
