package variant

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/fileattr"
	"berth/internal/image/unpack"
)

// Placement says where the implied directories of a layer go, on top of certain other layers. It is plain data: who
// looks at the layers below and who makes the variant are two processes, and the one that makes it sees no other layer.
type Placement struct {
	// Needed is false where the layer is right as it is. Only Lookups is set then.
	Needed bool
	// Lookups are how many directories of the layers below were looked into, needed or not.
	Lookups uint64
	// Moved: links of the layers below lead some directories elsewhere. What is made needs Check.
	Moved bool `json:",omitempty"`
	// Places are directories of the image, those above before those below them. The first is the root, which has a look
	// only if the layer takes that from below.
	Places []Place `json:",omitempty"`
	// At is the place of each implied directory, in the order of the list.
	At []int `json:",omitempty"`
}

// Place is a directory of the image.
type Place struct {
	Parent int    `json:",omitempty"` // among the places
	Name   []byte `json:",omitempty"` // any bytes that a file can be called by
	Look   *Look  `json:",omitempty"` // as the layers below show it; nil: they have none
}

// Look is how a directory looks. Keys of attributes can be any bytes.
type Look struct {
	Mode, UID, GID uint32
	Times          [2]unix.Timespec // of access and of modification
	Keys, Values   [][]byte         `json:",omitempty"`
}

// Plan decides where the implied directories of a layer go, and if root is set how its root directory looks. below are
// the directories of the layers below, the top one first, without what an opaque root hides. lookups are how many
// directories of them may be looked into; 0: any number. An image can have hundreds of layers that all put something
// into the same directories. A layer that cannot be meant is errdefs.ErrInvalidArgument, and one that needs more
// lookups errdefs.ErrResourceExhausted.
func Plan(ctx context.Context, implied unpack.Implied, root bool, below []*os.File, lookups uint64,
	x fileattr.Xattrs) (*Placement, error) {
	s := newStack(x, below...)
	s.limit = lookups
	defer s.close()
	p, err := newPlan(ctx, implied, s)
	if err != nil {
		return nil, err
	}
	if !p.needed && !root {
		return &Placement{Lookups: s.lookups}, nil
	}
	w := &placing{stack: s, known: map[*place]int{}, index: map[child]int{}}
	w.out = Placement{Needed: true, Lookups: s.lookups, Moved: len(p.moved) > 0, Places: []Place{{}}}
	if root && len(below) > 0 {
		if w.out.Places[0].Look, err = lookOf(x, int(below[0].Fd())); err != nil {
			return nil, err
		}
	}
	for i, n := range p.implied {
		if i%256 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		at, err := w.put(n.place)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", n.path(), err)
		}
		w.out.At = append(w.out.At, at)
	}
	return &w.out, nil
}

// placing writes a placement down.
type placing struct {
	stack *stack
	out   Placement
	known map[*place]int
	index map[child]int
}

type child struct {
	parent int
	name   string
}

// put returns the number of a place, of which there is one for each path.
func (w *placing) put(p *place) (int, error) {
	var way []*place
	at := 0
	for ; p.parent != nil; p = p.parent {
		if n, ok := w.known[p]; ok {
			at = n
			break
		}
		way = append(way, p)
	}
	for i := len(way) - 1; i >= 0; i-- {
		key := child{at, way[i].name}
		n, ok := w.index[key]
		if !ok {
			n = len(w.out.Places)
			w.index[key] = n
			w.out.Places = append(w.out.Places, Place{Parent: at, Name: []byte(way[i].name)})
		}
		if dirs := way[i].dirs; len(dirs) > 0 && w.out.Places[n].Look == nil {
			fd, err := w.stack.layers[dirs[0].layer].FD(dirs[0].dir)
			if err != nil {
				return 0, err
			}
			if w.out.Places[n].Look, err = lookOf(w.stack.xattrs, fd); err != nil {
				return 0, err
			}
		}
		w.known[way[i]] = n
		at = n
	}
	return at, nil
}

// spot is a place, for who makes the variant.
type spot struct {
	parent *spot // nil: the root
	name   string
	look   *Look
	out    *outDir // once it is made
}

// placed is a directory of the layer that is on the list, or the root.
type placed struct {
	at *spot // where it goes, if it is implied or the root
}

type node struct {
	parent *placed
	name   string
}

// nodes puts a list and its placement together. The root is the zero node's. The placement may come from a process
// that the layers below have taken over.
func (p *Placement) nodes(implied unpack.Implied) (map[node]*placed, error) {
	if len(p.Places) == 0 {
		return nil, refuse("placement: there is no root")
	}
	spots := make([]*spot, len(p.Places))
	for i, place := range p.Places {
		spots[i] = &spot{name: string(place.Name), look: place.Look}
		switch {
		case i == 0:
		case place.Parent < 0 || place.Parent >= i:
			return nil, refuse("placement: the place %d is below the place %d", i, place.Parent)
		case spots[i].name == "" || spots[i].name == "." || spots[i].name == ".." ||
			strings.ContainsAny(spots[i].name, "/\x00"):
			return nil, refuse("placement: a place with the name %q", shortened(place.Name))
		default:
			spots[i].parent = spots[place.Parent]
		}
		if l := place.Look; l != nil && len(l.Keys) != len(l.Values) {
			return nil, refuse("placement: %d attributes with %d values", len(l.Keys), len(l.Values))
		}
	}
	root := &placed{at: spots[0]}
	nodes := map[node]*placed{{}: root}
	at := []*placed{root}
	rest := p.At
	for d, err := range implied.All() {
		if err != nil {
			return nil, refuse("%w", err)
		}
		n := &placed{}
		if d.Implied {
			if len(rest) == 0 || rest[0] < 0 || rest[0] >= len(spots) {
				return nil, refuse("placement: there is no place for %q", shortened([]byte(d.Name)))
			}
			n.at, rest = spots[rest[0]], rest[1:]
		}
		nodes[node{at[d.Depth-1], d.Name}] = n
		at = append(at[:d.Depth], n)
	}
	if len(rest) > 0 {
		return nil, refuse("placement: there are %d places too many", len(rest))
	}
	return nodes, nil
}

func shortened(name []byte) string { return string(name[:min(len(name), 100)]) }

func lookOf(x fileattr.Xattrs, fd int) (*Look, error) {
	a, err := x.Of(fd)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	l := &Look{Mode: a.Mode, UID: a.UID, GID: a.GID, Times: [2]unix.Timespec{st.Atim, st.Mtim}}
	for key, value := range a.Xattrs {
		l.Keys, l.Values = append(l.Keys, []byte(key)), append(l.Values, value)
	}
	return l, nil
}

// apply ends with the times, which the rest has changed.
func (l *Look) apply(x fileattr.Xattrs, fd int) error {
	a := &fileattr.Attributes{Mode: l.Mode, UID: l.UID, GID: l.GID, Xattrs: map[string][]byte{}}
	for i, key := range l.Keys {
		a.Xattrs[string(key)] = l.Values[i]
	}
	if err := x.Apply(a, fd); err != nil {
		return err
	}
	return unpack.SetTimes(fd, &l.Times)
}
