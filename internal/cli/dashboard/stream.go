package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// beat is how often something is sent on a stream, so that a page notices when its server has gone.
	beat = 10 * time.Second
	// mediaType is that of a stream: a JSON object on each line.
	mediaType = "application/x-ndjson; charset=utf-8"
)

// sink is the writing end of a stream. It is for one goroutine.
type sink struct {
	encoder *json.Encoder
	control *http.ResponseController
}

// send writes one object. A browser that takes nothing for a while loses the stream.
func (s *sink) send(value any) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := s.encoder.Encode(value); err != nil {
		return err
	}
	return s.control.Flush()
}

// stream serves a stream. prepare says what is sent, or refuses.
func (s *Server) stream(prepare func(context.Context, *http.Request) (func(*sink) error, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.streams <- struct{}{}:
			defer func() { <-s.streams }()
		default:
			refuse(w, http.StatusTooManyRequests, fmt.Sprintf("%d logs and lists of events are followed already: "+
				"close other tabs with this page", maxStreams))
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		run, err := prepare(ctx, r)
		if err != nil {
			fail(w, err)
			return
		}
		w.Header().Set("Content-Type", mediaType)
		w.WriteHeader(http.StatusOK)
		out := &sink{encoder: json.NewEncoder(w), control: http.NewResponseController(w)}
		if out.control.Flush() != nil { // the page learns that the stream is open before anything is on it
			return
		}
		if err := run(out); err != nil && ctx.Err() == nil {
			_ = out.send(failure{Error: err.Error()})
		}
	}
}
