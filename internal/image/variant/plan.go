package variant

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fileattr"
	"berth/internal/image/unpack"
)

// plan holds the places of those directories of a layer that depend on the layers below.
type plan struct {
	below *stack
	root  *planned
	// implied are those of the list that are, in its order, and moved those of them that links lead elsewhere.
	implied, moved []*planned
	// needed: the layer as it is would show something else.
	needed bool
}

// planned is a directory on the layer's list.
type planned struct {
	parent *planned
	name   string
	// place is where it goes, if it is implied. Of the others it is the place where it would be looked up below.
	place *place
}

func (p *planned) path() string {
	if p.parent == nil {
		return ""
	}
	if up := p.parent.path(); up != "" {
		return up + "/" + p.name
	}
	return p.name
}

func refuse(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// newPlan decides about all directories of a list, from the layers as they are.
func newPlan(ctx context.Context, implied unpack.Implied, below *stack) (*plan, error) {
	p := &plan{below: below, root: &planned{place: below.root()}}
	at := []*planned{p.root}
	n := 0
	for d, err := range implied.All() {
		if err != nil {
			return nil, refuse("%w", err)
		}
		if n++; n%256 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		parent := at[d.Depth-1]
		// Those that the walk has left need not be looked up any more.
		for _, left := range at[d.Depth:] {
			left.forget()
		}
		next := &planned{parent: parent, name: d.Name}
		if err := p.decide(next, d); err != nil {
			return nil, fmt.Errorf("%q: %w", next.path(), err)
		}
		if d.Implied {
			p.implied = append(p.implied, next)
		}
		at = append(at[:d.Depth], next)
	}
	return p, nil
}

// decide finds the place of a directory.
func (p *plan) decide(n *planned, d unpack.ImpliedDir) error {
	at := n.parent.place
	if err := p.below.pay(at); err != nil {
		return err
	}
	f, err := p.below.look(at, n.name)
	if err != nil {
		return err
	}
	if (d.Implied || d.Direct) && f.kind == other {
		return refuse("the layer puts something into it, and the layers below have it as a file")
	}
	if d.Direct && f.kind == symlink {
		return refuse(
			"the layer uses it in an order that gives it two meanings, since the layers below have it as a link to %q",
			f.target)
	}
	if d.Implied && f.kind == symlink {
		if n.place, err = p.below.follow(at, f.target, n, nil); err != nil {
			if errors.Is(err, errNowhere) {
				err = refuse(
					"the layer puts something into it, and the layers below have it as a link to %q, which leads to no directory",
					f.target)
			}
			return err
		}
		p.moved = append(p.moved, n)
		p.needed = true
		return nil
	}
	if n.place, err = at.in(n.name, f.dirs); err != nil {
		return err
	}
	n.place.by = n
	if d.Implied && f.kind == directory && !p.needed {
		same, err := p.isPlain(f.dirs[0])
		p.needed = !same
		return err
	}
	return nil
}

// isPlain tells whether a directory looks like those that unpacking makes without an entry.
func (p *plan) isPlain(d part) (bool, error) {
	fd, err := p.below.layers[d.layer].FD(d.dir)
	if err != nil {
		return false, err
	}
	a, err := p.below.xattrs.Of(fd)
	if err != nil {
		return false, fmt.Errorf("%q: %w", d.dir.Path(), err)
	}
	return a.Equal(&fileattr.Attributes{Mode: unix.S_IFDIR | 0o755}), nil
}

// forget drops what is only needed while directories below this one are decided about: of the place that was found
// for it, and of those on the way of its link, all directories but the top one, whose attributes may be needed yet.
func (n *planned) forget() {
	for at := n.place; at.by == n; at = at.parent {
		if len(at.dirs) > 1 {
			at.dirs = []part{at.dirs[0]}
		}
	}
}
