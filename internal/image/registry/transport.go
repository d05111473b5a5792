package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// kind is what a request is made for.
type kind int

const (
	blob kind = iota
	document
)

type kindKey struct{}

func withKind(ctx context.Context, k kind) context.Context {
	return context.WithValue(ctx, kindKey{}, k)
}

// transport watches over requests: it bounds documents, cuts connections that bring nothing, and turns answers that ask
// for patience into errors, so that this package decides when to ask again.
type transport struct {
	base        http.RoundTripper
	maxDocument int64
	stall       time.Duration
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel()
		var timeout net.Error
		if req.Context().Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.As(err, &timeout) && timeout.Timeout()) {
			err = &connectionError{text: err.Error()}
		}
		return nil, err
	}
	switch code := resp.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		cancel()
		resp.Body.Close()
		return nil, &statusError{status: resp.Status, method: req.Method, path: req.URL.Path,
			retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
	}
	b := &body{ReadCloser: resp.Body, cancel: cancel, stall: t.stall}
	resp.Body = b
	// Bytes of a blob may come from anywhere that a registry redirects to; all else is small.
	isBlob := req.Context().Value(kindKey{}) == blob && (strings.Contains(req.URL.Path, "/blobs/") || req.Response != nil)
	if !isBlob {
		tooLarge := &tooLargeError{path: req.URL.Path, limit: t.maxDocument}
		if resp.ContentLength > t.maxDocument {
			b.Close()
			return nil, tooLarge
		}
		b.left, b.tooLarge = t.maxDocument, tooLarge
	}
	return resp, nil
}

// retryAfter reads the header, in seconds or as a date (RFC 9110, 10.2.3). 0: none.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil && seconds > 0 {
		return time.Duration(min(seconds, 1<<20)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// minProgress is how many bytes a connection brings within the stall time, at the least.
const minProgress = 4 << 10

// body is the body of an answer, with a clock: only the time spent waiting for bytes counts, not the time that the reader
// takes for them.
type body struct {
	io.ReadCloser
	cancel   context.CancelFunc
	stall    time.Duration
	tooLarge error
	left     int64 // of tooLarge's bound

	waited   time.Duration // since the last minProgress bytes
	progress int64
}

func (b *body) Read(p []byte) (int, error) {
	var stalled atomic.Bool
	timer := time.AfterFunc(max(b.stall-b.waited, time.Millisecond), func() {
		stalled.Store(true)
		b.cancel()
	})
	start := time.Now()
	n, err := b.ReadCloser.Read(p)
	timer.Stop()
	b.waited += time.Since(start)
	if b.progress += int64(n); b.progress >= minProgress {
		b.progress, b.waited = 0, 0
	}
	if b.tooLarge != nil {
		if b.left -= int64(n); b.left < 0 {
			b.Close()
			return 0, b.tooLarge
		}
	}
	switch {
	case err == nil || err == io.EOF:
	case stalled.Load():
		err = &connectionError{text: fmt.Sprintf("less than %d bytes came in %v", minProgress, b.stall)}
	case errors.Is(err, context.Canceled):
	default:
		err = &connectionError{text: err.Error()}
	}
	return n, err
}

func (b *body) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
