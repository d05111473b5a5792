package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

// failure is the body of a response that has no data.
type failure struct {
	Error string `json:"error"`
	// Away: the runtime does not answer now, and the same request may succeed later.
	Away bool `json:"away,omitempty"`
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, code int, text string) { send(w, code, failure{Error: text}) }

func send(w http.ResponseWriter, code int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		code, body = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written as JSON"}`)
	}
	sendBody(w, code, body)
}

func sendBody(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // who has gone gets no answer
}

// requestError is a request that the page does not send.
type requestError struct{ text string }

func (e *requestError) Error() string { return e.text }

func badRequest(format string, args ...any) error { return &requestError{fmt.Sprintf(format, args...)} }

// fail answers with an error of the runtime, or of a look-up.
func fail(w http.ResponseWriter, err error) {
	text := connection.Message(err)
	var none *lookup.NotFoundError
	var bad *requestError
	switch code := connection.Code(err); {
	case errors.As(err, &bad):
		refuse(w, http.StatusBadRequest, text)
	case errors.As(err, &none), code == codes.NotFound:
		refuse(w, http.StatusNotFound, text)
	case code == codes.Unavailable:
		send(w, http.StatusServiceUnavailable, failure{text, true})
	case code == codes.DeadlineExceeded, code == codes.Canceled:
		send(w, http.StatusServiceUnavailable, failure{"the runtime has not answered in time", true})
	case code == codes.Unimplemented:
		refuse(w, http.StatusNotImplemented, text)
	default:
		refuse(w, http.StatusInternalServerError, text)
	}
}

// bounded gives a request its time, and its place among those that are answered at once.
func (s *Server) bounded(w http.ResponseWriter, r *http.Request, do func(context.Context)) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	select {
	case s.requests <- struct{}{}:
		defer func() { <-s.requests }()
	case <-ctx.Done():
		refuse(w, http.StatusTooManyRequests, "too many requests are being answered")
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * patience))
	do(ctx)
}

// list answers with a list that is shared by all pages.
func (s *Server) list(c *cached) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.bounded(w, r, func(ctx context.Context) {
			_, body, err := c.get(ctx)
			if err != nil {
				fail(w, err)
				return
			}
			sendBody(w, http.StatusOK, body)
		})
	}
}

// answer answers with what read returns.
func (s *Server) answer(read func(context.Context, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.bounded(w, r, func(ctx context.Context) {
			value, err := read(ctx, r)
			if err != nil {
				fail(w, err)
				return
			}
			send(w, http.StatusOK, document{time.Now(), value})
		})
	}
}
