package variant

import (
	"context"
	"errors"
	"fmt"
	"os"

	"berth/internal/fileattr"
	"berth/internal/image/unpack"
)

// Check makes sure that each link by which something was put elsewhere still leads there when the variant is on top
// of the layers below. If the layer changes something on the way, its entries came in an order that is not known
// any more, and that decides where they belong.
func Check(ctx context.Context, implied unpack.Implied, variant *os.File, below []*os.File, x fileattr.Xattrs) error {
	under := newStack(x, below...)
	defer under.close()
	p, err := newPlan(ctx, implied, under)
	if err != nil {
		return err
	}
	whole := newStack(x, append([]*os.File{variant}, below...)...)
	whole.steps = under.steps
	defer whole.close()
	for _, n := range p.moved {
		if err := p.checkOne(whole, n); err != nil {
			return fmt.Errorf("%q: %w", n.path(), err)
		}
	}
	return nil
}

func (p *plan) checkOne(whole *stack, n *planned) error {
	changed := func(what string) error {
		return refuse(
			"the layer puts something into it, which the layers below have as a link to %q, and changes %q on the way there",
			n.place.path(), what)
	}
	end := n.place.path()
	seen := func(at *place, f found) error {
		// The end itself may hide what is below it: what is put there comes from this layer.
		if f.opaque && at.path() != end {
			return changed(at.path())
		}
		return nil
	}
	at := whole.root()
	from := n.parent.place
	var way []*place
	for up := from; up.parent != nil; up = up.parent {
		way = append(way, up)
	}
	for i := len(way) - 1; i >= 0; i-- {
		if err := whole.step(at); err != nil {
			return err
		}
		f, err := whole.look(at, way[i].name)
		if err != nil {
			return err
		}
		if f.kind != directory || f.opaque {
			return changed(way[i].path())
		}
		if at, err = at.in(way[i].name, f.dirs); err != nil {
			return err
		}
	}
	f, err := whole.look(at, n.name)
	if err != nil {
		return err
	}
	if f.kind != symlink {
		return changed(from.path() + "/" + n.name)
	}
	got, err := whole.follow(at, f.target, nil, seen)
	if errors.Is(err, errNowhere) || err == nil && got.path() != end {
		return changed(end)
	}
	return err
}
