package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
)

// statusKeeper tells one answer after the other.
type statusKeeper struct {
	Keeper
	answers []any // a state, or an error
}

func (k *statusKeeper) Status(context.Context, string) (*keeper.Status, error) {
	next := k.answers[0]
	k.answers = k.answers[1:]
	if err, ok := next.(error); ok {
		return nil, err
	}
	return &keeper.Status{State: next.(keeper.State)}, nil
}

// A container that the keeper still starts when berthd comes is neither running nor lost: berthd waits until that is
// decided. It took the container for one that runs, while the keeper refused execs since it was starting: so the first
// case fails without the wait.
func TestStartUnderWayIsAwaited(t *testing.T) {
	missing := fmt.Errorf("container: %w", errdefs.ErrNotFound)
	for _, c := range []struct {
		name    string
		answers []any
		want    keeper.State
		unknown bool
	}{
		{name: "it begins", answers: []any{keeper.StateStarting, keeper.StateStarting, keeper.StateRunning},
			want: keeper.StateRunning},
		{name: "it has ended by then", answers: []any{keeper.StateStarting, keeper.StateExited}, want: keeper.StateExited},
		{name: "it fails", answers: []any{keeper.StateStarting, missing}},
		{name: "the keeper does not tell", answers: []any{errors.New("broken")}, unknown: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			rc := &Recovery{Keeper: &statusKeeper{answers: c.answers}, Log: slog.New(slog.DiscardHandler)}
			status, known := rc.startDecided(t.Context(), "a", &keeper.Status{State: keeper.StateStarting}, time.Minute)
			if known == c.unknown {
				t.Errorf("known: %v", known)
			}
			if status == nil && c.want != "" || status != nil && status.State != c.want {
				t.Errorf("status %+v, want %q", status, c.want)
			}
		})
	}
}
