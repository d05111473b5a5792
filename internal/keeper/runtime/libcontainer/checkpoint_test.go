package libcontainer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer"

	"berth/internal/keeper/runtime"
	"berth/internal/keeper/stage"
)

// frozen is a container that is frozen for a checkpoint.
type frozen struct {
	runtime.Container
	guard  sync.RWMutex
	loaded any
	thawed chan struct{}
}

func (f *frozen) Guard() *sync.RWMutex    { return &f.guard }
func (f *frozen) Loaded() *any            { return &f.loaded }
func (f *frozen) Thawed() <-chan struct{} { return f.thawed }

// TestAnExecThatIsEndedDuringACheckpoint: it does not wait until the container is thawed, which may take minutes.
func TestAnExecThatIsEndedDuringACheckpoint(t *testing.T) {
	c := &frozen{loaded: &libcontainer.Container{}, thawed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- (&Engine{}).withoutCheckpoint(ctx, c, func(*libcontainer.Container) error {
			return errors.New("it was started in a frozen container")
		})
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, stage.ErrInterrupted) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits")
		close(c.thawed)
	}
}
