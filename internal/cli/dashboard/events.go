package dashboard

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
)

const (
	// keptEvents is how many events a page gets that is opened later.
	keptEvents = 500
	// retry is the time between two attempts to reach a runtime that has gone.
	retry = 500 * time.Millisecond
)

// event is an event of the runtime, or one about the runtime itself: it went away, or is back.
type event struct {
	Number int64 `json:"number"` // from 1, one more for each event
	*listing.Event
	PodID   string `json:"podID,omitempty"`
	Subject string `json:"subject"`
	Outcome string `json:"outcome,omitempty"`
}

// hub has one stream of events from the runtime, for all pages, and remembers the last of them.
type hub struct {
	runtime cri.RuntimeServiceClient

	mu     sync.Mutex // guards what follows
	events []event    // the last keptEvents
	last   int64      // the number of the newest
	news   chan struct{}
}

func newHub(runtime cri.RuntimeServiceClient) *hub {
	return &hub{runtime: runtime, news: make(chan struct{})}
}

// run takes events until ctx ends, also from a runtime that was restarted.
func (h *hub) run(ctx context.Context) {
	for ctx.Err() == nil {
		stream, err := h.runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
		for err == nil {
			var e *cri.ContainerEventResponse
			if e, err = stream.Recv(); err == nil {
				row, pod := listing.NewEvent(e)
				h.add(row, pod.GetId())
			}
		}
		if ctx.Err() != nil {
			return
		}
		if connection.Code(err) == codes.Unimplemented {
			h.add(about("without events"), "")
			return
		}
		h.add(about("away"), "")
		if !h.back(ctx) {
			return
		}
		h.add(about("back"), "")
	}
}

// about is an event about the runtime.
func about(what string) *listing.Event {
	return &listing.Event{Time: time.Now(), Kind: "runtime", Event: what}
}

// back waits until the runtime answers; false: ctx has ended.
func (h *hub) back(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(retry):
		}
		if _, err := h.runtime.Version(ctx, &cri.VersionRequest{}); err == nil {
			return true
		}
	}
}

func (h *hub) add(row *listing.Event, podID string) {
	e := event{Event: row, PodID: podID, Outcome: row.Outcome()}
	if row.Kind != "runtime" {
		e.Subject = row.Subject()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	e.Number = h.last
	h.events = append(h.events, e)
	if len(h.events) > keptEvents {
		h.events = append([]event(nil), h.events[len(h.events)-keptEvents:]...)
	}
	close(h.news)
	h.news = make(chan struct{})
}

// since are the events after the one of a number, and a channel that is closed when there are more.
func (h *hub) since(number int64) ([]event, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, e := range h.events {
		if e.Number > number {
			return append([]event(nil), h.events[i:]...), h.news
		}
	}
	return nil, h.news
}

// eventBatch is one message of the stream of events. It may be empty.
type eventBatch struct {
	Events []event `json:"events,omitempty"`
}

// followEvents sends events after the one whose number is given, as they come.
func (s *Server) followEvents(ctx context.Context, r *http.Request) (func(*sink) error, error) {
	after, _ := strconv.ParseInt(r.FormValue("after"), 10, 64) // without a number: all that are remembered
	return func(out *sink) error {
		for {
			events, news := s.events.since(after)
			if err := out.send(eventBatch{events}); err != nil {
				return err
			}
			if len(events) > 0 {
				after = events[len(events)-1].Number
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-news:
			case <-time.After(beat):
			}
		}
	}, nil
}
