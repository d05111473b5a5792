package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/image"
	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
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

// noImages is a store that has lost its images.
type noImages struct{ collected bool }

func (s *noImages) AddReference(image, _ string) (*image.Layers, error) {
	return nil, errdefs.ErrNotFound
}

func (s *noImages) Collect(context.Context) error {
	s.collected = true
	return nil
}

// TestLayersStayWhileAContainerHasAnImageThatIsLost: its layers are not known, and may be those that nobody seems to
// need. An ended container needs none. It was seen to fail where the failed reference is no more than a warning.
func TestLayersStayWhileAContainerHasAnImageThatIsLost(t *testing.T) {
	for phase, collects := range map[record.ContainerPhase]bool{
		record.ContainerRunning: false, record.ContainerCreated: false, record.ContainerExited: true,
	} {
		t.Run(string(phase), func(t *testing.T) {
			log, dir, store := slog.New(slog.DiscardHandler), t.TempDir(), &noImages{}
			dirOf := func(string) string { return dir }
			rc := &Recovery{Index: index.New(), Images: store, Log: log, Ctx: t.Context(),
				Containers: record.NewContainers(filepath.Join(dir, "containers"), log)}
			pod := record.NewSandboxes(filepath.Join(dir, "pods"), dirOf, log).New("pod",
				record.Sandbox{ID: "pod", Config: &model.SandboxConfig{}})
			rc.Index.AdoptSandbox(index.NewSandbox(pod))
			c := record.Container{ID: "c", SandboxID: "pod", ImageID: "sha256:lost", Config: &model.ContainerConfig{}}
			err := rc.Containers.New("c", c).Update(record.Repair, func(r *record.Container) { r.Phase = phase })
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := rc.loadContainers(); err != nil {
				t.Fatal(err)
			}
			rc.collectImages()
			if store.collected {
				t.Error("layers are collected before berthd serves")
			}
			for _, work := range rc.Unfinished {
				work()
			}
			if store.collected != collects {
				t.Errorf("layers are collected: %v", store.collected)
			}
		})
	}
}
