package launch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
)

const (
	// pollQuiet is how often a status is asked for where events tell of changes, pollBlind where they do not.
	pollQuiet = 2 * time.Second
	pollBlind = 100 * time.Millisecond
	// patience is how long the daemon may be away, such as for an upgrade, before waiting for a container fails. A Watch
	// may have another.
	patience = time.Minute
)

// Watch waits for containers to end. The runtime's events wake it; what it believes is the status.
type Watch struct {
	// Patience is how long the daemon may be away before waiting for a container fails; negative: for ever.
	Patience time.Duration

	runtime cri.RuntimeServiceClient
	mu      sync.Mutex
	wake    chan struct{} // closed and replaced at each event
	live    bool          // events come
}

// NewWatch listens until ctx ends.
func NewWatch(ctx context.Context, runtime cri.RuntimeServiceClient) *Watch {
	w := &Watch{Patience: patience, runtime: runtime, wake: make(chan struct{})}
	go w.listen(ctx)
	return w
}

func (w *Watch) listen(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := w.runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
		for err == nil {
			if _, err = stream.Recv(); err == nil {
				w.notify(true)
			}
		}
		w.notify(false)
		if connection.Code(err) == codes.Unimplemented {
			return // polling has to do
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollBlind):
		}
	}
}

func (w *Watch) notify(live bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live = live
	close(w.wake)
	w.wake = make(chan struct{})
}

func (w *Watch) next() (wake <-chan struct{}, poll time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.live {
		return w.wake, pollQuiet
	}
	return w.wake, pollBlind
}

// Changed is closed at the next event of the runtime, and when events begin or end to come.
func (w *Watch) Changed() <-chan struct{} {
	wake, _ := w.next()
	return wake
}

// Exited waits until a container has ended.
func (w *Watch) Exited(ctx context.Context, id string) (*cri.ContainerStatus, error) {
	return w.until(ctx, id, func(state cri.ContainerState) bool { return state == cri.ContainerState_CONTAINER_EXITED })
}

// Started waits until a container runs, or has ended.
func (w *Watch) Started(ctx context.Context, id string) (*cri.ContainerStatus, error) {
	return w.until(ctx, id, func(state cri.ContainerState) bool { return state != cri.ContainerState_CONTAINER_CREATED })
}

// Status is the status of a container, once the runtime answers.
func (w *Watch) Status(ctx context.Context, id string) (*cri.ContainerStatus, error) {
	return w.until(ctx, id, func(cri.ContainerState) bool { return true })
}

// until waits until a container is in a state that is good.
func (w *Watch) until(ctx context.Context, id string, good func(cri.ContainerState) bool) (*cri.ContainerStatus,
	error) {
	answered := time.Now()
	for {
		wake, poll := w.next()
		response, err := w.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		switch {
		case err == nil:
			answered = time.Now()
			if good(response.GetStatus().GetState()) {
				return response.GetStatus(), nil
			}
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case connection.Code(err) == codes.NotFound:
			return nil, fmt.Errorf("it was removed meanwhile: %w", connection.Plain(err))
		case connection.Code(err) != codes.Unavailable || w.Patience >= 0 && time.Since(answered) > w.Patience:
			return nil, connection.Plain(err)
		}
		timer := time.NewTimer(poll)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}
