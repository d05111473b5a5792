package variant

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	rt "berth/internal/registrytest"
)

// model is a file system in memory onto which layers are unpacked one after another, entry by entry, as the image
// specification has it: what overlayfs shows of layers and variants must be what the model shows. Whiteouts and opaque
// marks hide what lower layers have, wherever they stand among a layer's entries, and what they hide has no say in the
// attributes of directories either.
type model struct {
	root  *object
	layer int
}

type object struct {
	kind           byte // of the tar's types
	mode, uid, gid uint32
	text           string // a file's content, a link's target
	names          map[string]*name
	// whiteouts are names that a layer has hidden, with the layer. A hard link to one is a further one.
	whiteouts map[string]int
}

// name is an entry of a directory. layer is the one that said last what it is.
type name struct {
	*object
	layer int
}

func newModel() *model { return &model{root: impliedDir()} }

var errModel = errors.New("this cannot be unpacked")

func impliedDir() *object {
	return &object{kind: tar.TypeDir, mode: 0o755, names: map[string]*name{}}
}

// apply unpacks a layer.
func (m *model) apply(entries []rt.Entry) error {
	m.layer++
	for _, e := range entries {
		if err := m.entry(e); err != nil {
			return fmt.Errorf("layer %d: %s: %w", m.layer, e.Name, err)
		}
	}
	return nil
}

func (m *model) entry(e rt.Entry) error {
	full := strings.Trim(path.Clean("/"+e.Name), "/")
	if full == "" {
		m.root.mode, m.root.uid, m.root.gid = uint32(e.Mode), uint32(e.Uid), uint32(e.Gid)
		return nil
	}
	parent, base := path.Split(full)
	dir, err := m.dir(parent, true)
	if err != nil {
		return err
	}
	if base == ".wh..wh..opq" {
		m.hide(dir)
		return nil
	}
	hidden, ok := strings.CutPrefix(base, ".wh.")
	if ok || e.Typeflag == tar.TypeChar { // 0:0
		m.whiteout(dir, hidden)
		return nil
	}
	o := &object{kind: e.Typeflag, mode: uint32(e.Mode), uid: uint32(e.Uid), gid: uint32(e.Gid)}
	switch e.Typeflag {
	case tar.TypeDir:
		if n := dir.names[base]; n != nil && n.kind == tar.TypeDir {
			n.mode, n.uid, n.gid, n.layer = o.mode, o.uid, o.gid, m.layer
			return nil
		}
		o.names = map[string]*name{}
	case tar.TypeReg:
		o.text = string(e.Body)
	case tar.TypeSymlink:
		o.mode, o.text = 0o777, e.Linkname
	case tar.TypeLink:
		targetDir, targetBase := path.Split(strings.Trim(path.Clean("/"+e.Linkname), "/"))
		from, err := m.dir(targetDir, false)
		if err != nil {
			return err
		}
		target := from.names[targetBase]
		if target == nil && from.whiteouts[targetBase] == m.layer {
			m.whiteout(dir, base)
			return nil
		}
		if target == nil || target.kind == tar.TypeDir {
			return fmt.Errorf("%w: link to %s", errModel, e.Linkname)
		}
		if from == dir && targetBase == base {
			return nil
		}
		o = target.object
	}
	dir.names[base] = &name{o, m.layer}
	return nil
}

func (m *model) whiteout(dir *object, base string) {
	if n := dir.names[base]; n != nil && m.own(n) {
		return
	}
	delete(dir.names, base)
	if dir.whiteouts == nil {
		dir.whiteouts = map[string]int{}
	}
	dir.whiteouts[base] = m.layer
}

// own keeps of a name what the layer itself has put there, and tells whether that is anything.
func (m *model) own(n *name) bool {
	if n.kind != tar.TypeDir {
		return n.layer == m.layer
	}
	m.hide(n.object)
	if n.layer == m.layer {
		return true
	}
	if len(n.names) == 0 {
		return false
	}
	fresh := impliedDir()
	fresh.names, fresh.whiteouts = n.names, n.whiteouts
	*n.object, n.layer = *fresh, m.layer
	return true
}

// hide takes away what lower layers have in a directory.
func (m *model) hide(dir *object) {
	for base, n := range dir.names {
		if !m.own(n) {
			delete(dir.names, base)
		}
	}
}

func (m *model) dir(name string, create bool) (*object, error) {
	at := []*object{m.root}
	links := 0
	for rest := name; rest != ""; {
		var c string
		c, rest, _ = strings.Cut(rest, "/")
		switch c {
		case "", ".":
			continue
		case "..":
			at = at[:max(len(at)-1, 1)]
			continue
		}
		dir := at[len(at)-1]
		n := dir.names[c]
		switch {
		case n == nil && create:
			n = m.put(dir, c, impliedDir())
			fallthrough
		case n != nil && n.kind == tar.TypeDir:
			at = append(at, n.object)
		case n != nil && n.kind == tar.TypeSymlink:
			if links++; links > maxLinks {
				return nil, fmt.Errorf("%w: too many links", errModel)
			}
			if path.IsAbs(n.text) {
				at = at[:1]
			}
			rest = n.text + "/" + rest
		default:
			return nil, fmt.Errorf("%w: %s is no directory", errModel, c)
		}
	}
	return at[len(at)-1], nil
}

// put makes a directory that the layer implies: it is the layer's own only if something in it is.
func (m *model) put(dir *object, base string, o *object) *name {
	n := &name{o, 0}
	dir.names[base] = n
	return n
}

// printAll writes a root directory and all that is in it, a line each.
func (o *object) printAll(w io.Writer) {
	fmt.Fprintf(w, "/ %o %d:%d\n", o.mode, o.uid, o.gid)
	o.print(w, "")
}

// print writes all that is in a directory, a line each.
func (o *object) print(w io.Writer, at string) {
	bases := make([]string, 0, len(o.names))
	for base := range o.names {
		bases = append(bases, base)
	}
	slices.Sort(bases)
	for _, base := range bases {
		n := o.names[base]
		fmt.Fprintf(w, "%s %c %o %d:%d %q\n", path.Join(at, base), n.kind, n.mode, n.uid, n.gid, n.text)
		if n.kind == tar.TypeDir {
			n.print(w, path.Join(at, base))
		}
	}
}
