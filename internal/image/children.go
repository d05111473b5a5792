package image

import (
	"context"

	"berth/internal/jail"
)

// Children starts what parses images and archives: a child for each role that it is asked for. Those of berthd are
// confined processes (package jail), of which none is believed.
type Children interface {
	// Start starts a child, which is killed when the context ends. The child's ends of the rings are closed when Start
	// returns, whatever it returns.
	Start(context.Context, jail.Spec) (Child, error)
}

// Child is one that was started. Wait has to be called, and waits for its end.
type Child interface {
	Kill()
	// Wait decodes what the child has answered into result. The error is the child's own, or says how it ended.
	Wait(result any) error
}

// ChildrenOf are the children that s starts: a jail.Jail's, for example.
func ChildrenOf[C Child](s interface {
	Start(context.Context, jail.Spec) (C, error)
}) Children {
	return children[C]{s.Start}
}

type children[C Child] struct {
	start func(context.Context, jail.Spec) (C, error)
}

func (c children[C]) Start(ctx context.Context, spec jail.Spec) (Child, error) {
	started, err := c.start(ctx, spec)
	if err != nil {
		return nil, err // and no Child that holds a nil pointer
	}
	return started, nil
}
