package unpack

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many symbolic links a path may have, as in the kernel.
const maxLinks = 40

func isWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// child is a directory of the layer in another one; nil: there is none of this name.
func (l *layer) child(parent *dir, name string) *dir {
	d := l.tree.Child(parent, name)
	if d == nil || d.Data.gone || d.Data.upLife != parent.Data.life {
		return nil
	}
	return d
}

// made enters a directory that was just made.
func (l *layer) made(parent *dir, name string) (*dir, error) {
	length := int(parent.Data.length) + len(name)
	if parent != l.tree.Root() {
		length++
	}
	d := l.tree.Child(parent, name)
	if d == nil {
		if err := l.memory(name); err != nil {
			return nil, err
		}
		d = l.tree.Add(parent, strings.Clone(name)) // not a part of a longer string, which would stay in memory
	} else {
		// There was one before, which something has replaced.
		l.tree.Forget(d)
		d.Data.finish()
		d.Data = made{life: d.Data.life + 1, direct: d.Data.direct}
	}
	d.Data.upLife, d.Data.length = parent.Data.life, uint16(length)
	if l.opaque {
		for up := parent; up != nil && !d.Data.hidden; up = up.Parent() {
			d.Data.hidden = up.Data.opaque
		}
	}
	return d, nil
}

// finish ends that a directory is implied: what was put into it is right only if lower layers have no link
// in its place.
func (m *made) finish() {
	m.direct = m.direct || m.implied && !m.hidden
	m.implied = false
}

// dir finds a directory of the layer by a path relative to the root, with links in it expanded inside the root.
// With create, what is missing is made, as a directory that the tar implies.
func (l *layer) dir(name string, create bool) (*dir, error) {
	cur, rest := l.nearest(name)
	links := 0
	for rest != "" {
		var c string
		c, rest, _ = strings.Cut(rest, "/")
		switch c {
		case "", ".":
			continue
		case "..":
			// The way up is another one if this directory is a link in lower layers.
			if d := &cur.Data; d.implied && !d.hidden {
				d.direct = true
			}
			if cur.Parent() != nil {
				cur = cur.Parent()
			}
			continue
		}
		if d := l.child(cur, c); d != nil {
			cur = d
			continue
		}
		if n := int(cur.Data.length) + 1 + len(c); n > maxName {
			return nil, invalid("the path has %d bytes", n)
		}
		d, target, err := l.step(cur, c, create)
		if err != nil {
			return nil, err
		}
		if d != nil {
			cur = d
			continue
		}
		if links++; links > maxLinks {
			return nil, invalid("%q is behind more than %d symbolic links", name, maxLinks)
		}
		// The way along a link may be a thousand times longer than the entry that goes it.
		if err := l.entries(1 + len(target)/64); err != nil {
			return nil, err
		}
		if path.IsAbs(target) {
			cur = l.tree.Root()
		}
		rest = target + "/" + rest
	}
	if links == 0 {
		l.last, l.lastPath = cur, name
	}
	return cur, nil
}

// nearest is the closest directory on the way to a path that is known from the last lookup, and the rest of the way.
func (l *layer) nearest(name string) (*dir, string) {
	if l.last == nil {
		return l.tree.Root(), name
	}
	n := 0
	for n < len(name) && n < len(l.lastPath) && name[n] == l.lastPath[n] {
		n++
	}
	ends := func(path string) bool { return n == len(path) || path[n] == '/' }
	if !ends(name) || !ends(l.lastPath) {
		n = max(strings.LastIndexByte(name[:n], '/'), 0)
	}
	at := l.last
	for range strings.FieldsFuncSeq(l.lastPath[n:], func(r rune) bool { return r == '/' }) {
		at = at.Parent()
	}
	return at, strings.TrimPrefix(name[n:], "/")
}

// step goes to a name in a directory where the layer has no directory of that name: it is made, or the target
// of a symbolic link is returned. A whiteout becomes an opaque directory, since what is put into it does not bring back
// what it hides.
func (l *layer) step(cur *dir, name string, create bool) (d *dir, target string, err error) {
	at, err := l.tree.FD(cur)
	if err != nil {
		return nil, "", err
	}
	if create {
		switch err := unix.Mkdirat(at, name, 0o755); {
		case err == nil:
			if err := l.entries(1); err != nil {
				return nil, "", err
			}
			if d, err = l.made(cur, name); err != nil {
				return nil, "", err
			}
			d.Data.implied = true
			return d, "", l.plain(d)
		case !errors.Is(err, unix.EEXIST):
			return nil, "", fmt.Errorf("make directory %q: %w", cur.PathOf(name), err)
		}
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
		return nil, "", invalid("the layer has no %q", cur.PathOf(name))
	case err != nil:
		return nil, "", fmt.Errorf("look up %q: %w", cur.PathOf(name), err)
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		buf := make([]byte, maxName)
		n, err := unix.Readlinkat(at, name, buf)
		if err != nil {
			return nil, "", fmt.Errorf("read link %q: %w", cur.PathOf(name), err)
		}
		return nil, string(buf[:n]), nil
	case isWhiteout(&st) && create:
		if err := unix.Unlinkat(at, name, 0); err != nil {
			return nil, "", err
		}
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			return nil, "", err
		}
		if d, err = l.made(cur, name); err != nil {
			return nil, "", err
		}
		return d, "", errors.Join(l.plain(d), l.makeOpaque(d))
	}
	return nil, "", invalid("%q is not a directory", cur.PathOf(name))
}

// plain gives a new directory that no entry describes the attributes of one: the umask of the process, and the group
// of a setgid directory above it, are not the image's.
func (l *layer) plain(d *dir) error {
	l.inodes++
	if err := l.disk(block); err != nil {
		return err
	}
	fd, err := l.tree.FD(d)
	if err != nil {
		return err
	}
	return errors.Join(l.chown(fd, "", 0, 0), unix.Fchmod(fd, 0o755))
}

// hide notes of all directories below one that it became opaque. Those that are there only for what they hide
// of lower layers have nothing to hide any more, and go.
func (l *layer) hide(top *dir) error {
	waiting := []*dir{top}
	for len(waiting) > 0 {
		d := waiting[len(waiting)-1]
		waiting = waiting[:len(waiting)-1]
		for c := range d.Children {
			// A layer can say this of each of its directories, and again and again.
			if err := l.entries(1); err != nil {
				return err
			}
			if l.child(d, c.Name()) == nil {
				continue // it was removed
			}
			empty := !c.Data.full
			// What was put into it before would have gone where a link of lower layers leads.
			c.Data.finish()
			if empty {
				if err := l.remove(c); err != nil {
					return err
				}
				continue
			}
			c.Data.hidden = true
			waiting = append(waiting, c)
		}
	}
	return nil
}

// finish finds out about all directories what only the end can tell.
func (l *layer) finish() {
	for d := range l.tree.All() {
		m, up := &d.Data, d.Parent()
		if up == nil {
			m.there = true
			continue
		}
		m.there = up.Data.there && !m.gone && m.upLife == up.Data.life
		if m.hidden {
			m.implied = false // no lower layer has a say
		} else if !m.there {
			m.finish() // something was put into it before it was removed
		}
		if m.implied || m.direct {
			for ; up != nil && !up.Data.listed; up = up.Parent() {
				up.Data.listed = true
			}
			m.listed = true
		}
	}
}

// implied lists what depends on lower layers, after finish.
func (l *layer) implied() Implied {
	var list Implied
	depth := 0
	var at *dir = l.tree.Root()
	for d := range l.tree.All() {
		if !d.Data.listed || d.Parent() == nil {
			continue
		}
		for ; at != d.Parent(); at = at.Parent() {
			depth--
		}
		at = d
		depth++
		list = list.Append(ImpliedDir{Depth: depth, Name: d.Name(), Implied: d.Data.implied, Direct: d.Data.direct})
	}
	return list
}
