package pod

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/ocispec"
	"berth/internal/pod/index"
)

// SignalContainer sends a signal, by its name or number, to the first process of a running container or to all its
// processes. What it does is the processes' affair: the call does not wait for it, and a paused container gets most
// signals when it goes on.
func (m *Manager) SignalContainer(ctx context.Context, id, signal string, all bool) error {
	sig, ok := ocispec.ParseSignal(signal)
	if !ok {
		return fmt.Errorf("signal %q is neither a signal's name nor a number: %w", signal, errdefs.ErrInvalidArgument)
	}
	return m.whileRunning(ctx, "signal", id, func(c *index.Container) error {
		return m.cfg.Keeper.Signal(ctx, c.ID(), sig, all)
	})
}
