package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/jail/wire"
)

// kind says whether a request asks for a blob, or for a document that is read into memory.
type kind int

const (
	blob kind = iota
	document
	located // a blob, at a place to which a registry has redirected before
)

type kindKey struct{}

func withKind(ctx context.Context, k kind) context.Context {
	return context.WithValue(ctx, kindKey{}, k)
}

// refusal is why a host has refused what is asked of it, with the authorization that there is. The library
// tries other ways, such as a digest among blobs where it was among manifests: the host is not asked any more.
// It belongs to one goroutine.
type refusal struct{ err error }

type refusalKey struct{}

func withRefusal(ctx context.Context) context.Context {
	return context.WithValue(ctx, refusalKey{}, &refusal{})
}

// refuse notes a refusal and returns it.
func refuse(ctx context.Context, err error) error {
	if r, ok := ctx.Value(refusalKey{}).(*refusal); ok {
		r.err = err
	}
	return err
}

// transport watches over requests: it bounds documents, cuts connections that bring nothing, and turns answers that ask
// for patience into errors, so that this package decides when to ask again.
type transport struct {
	base        *http.Transport
	maxDocument int64
	stall       time.Duration

	once    sync.Once
	patient *http.Transport // base, for requests that put something; made when the first one comes
}

// commits is how many times longer than any other answer the one to a PUT may take: a registry checks a layer, and may
// copy it to another place, before it answers.
const commits = 10

// of returns the connections for a request.
func (t *transport) of(req *http.Request) *http.Transport {
	if req.Method != http.MethodPut {
		return t.base
	}
	t.once.Do(func() {
		t.patient = t.base.Clone()
		t.patient.ResponseHeaderTimeout = commits * t.stall
	})
	if t.patient == nil { // closed before
		return t.base
	}
	return t.patient
}

// CloseIdleConnections drops connections that no request uses.
func (t *transport) CloseIdleConnections() {
	t.base.CloseIdleConnections()
	t.once.Do(func() {}) // none is made from now on
	if t.patient != nil {
		t.patient.CloseIdleConnections()
	}
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := refused(req); err != nil {
		if req.Body != nil { // who sends it waits for that
			req.Body.Close()
		}
		return nil, err
	}
	// Bytes of a blob may come from anywhere that a registry redirects to; all else is small.
	of := req.Context().Value(kindKey{})
	isBlob := of == located || of == blob && (strings.Contains(req.URL.Path, "/blobs/") || req.Response != nil)
	part, _ := req.Context().Value(spanKey{}).(*span)
	if !isBlob {
		part = nil // a token, for instance
	}
	ctx, cancel := context.WithCancel(req.Context())
	resp, err := t.of(req).RoundTrip(part.ask(asItIs(ctx, bodyless(req))))
	if err != nil {
		cancel()
		var timeout net.Error
		if req.Context().Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.As(err, &timeout) && timeout.Timeout()) {
			err = &connectionError{text: err.Error(), dial: isDial(err)}
		}
		return nil, err
	}
	if m, ok := req.Context().Value(mountingKey{}).(*mounting); ok {
		m.answered(resp)
	}
	switch code := resp.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		said := serverMessage(resp, cancel)
		cancel()
		resp.Body.Close()
		return nil, &statusError{code: code, status: resp.Status, method: req.Method, path: req.URL.Path,
			retryAfter: retryAfter(resp.Header, time.Now()), said: said}
	case code == http.StatusForbidden && req.Method == http.MethodHead:
		cancel()
		resp.Body.Close()
		head, said := t.reason(req)
		if head == nil {
			return nil, refuse(req.Context(), &forbiddenError{
				method: req.Method, path: req.URL.Path, status: resp.Status, said: said,
			})
		}
		resp = head
	}
	if err := part.check(req, resp); err != nil {
		cancel()
		resp.Body.Close()
		return nil, err
	}
	b := &body{ReadCloser: resp.Body, cancel: cancel, stall: t.stall}
	resp.Body = b
	isBlob = isBlob && resp.StatusCode <= 299 // else it is an error's text
	if isBlob {
		b.rate = rateOf(req.Context())
	} else {
		err := tooLarge(req.URL.Path+" has", t.maxDocument)
		if resp.ContentLength > t.maxDocument {
			b.Close()
			return nil, err
		}
		b.left, b.tooLarge = t.maxDocument, err
	}
	if err := decode(req, resp, b, isBlob); err != nil {
		b.Close()
		return nil, err
	}
	return resp, nil
}

// refused is why a request is not sent.
func refused(req *http.Request) error {
	if r, ok := req.Context().Value(refusalKey{}).(*refusal); ok && r.err != nil {
		return r.err
	}
	// What comes over plain HTTP may be anybody's, and a manifest's digest is believed.
	if from := req.Response; from != nil && from.Request != nil && from.Request.URL.Scheme == "https" &&
		req.URL.Scheme != "https" {
		return fmt.Errorf("%s redirects to plain HTTP, at %s: %w", from.Request.URL.Host, req.URL.Host, errRefused)
	}
	return nil
}

// errRefused is for what no further attempt makes better.
var errRefused = errors.New("refused")

// guard keeps connections away from addresses at which the node itself is trusted, such as a cloud's metadata service:
// a registry may redirect to any name, and name any token service. Hosts that hosts.toml names are where its author put
// them.
func (r *Repository) guard(t *http.Transport) *http.Transport {
	dial := t.DialContext
	if r.client.dial != nil {
		dial = r.client.dial
	}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil || r.rules.names(address) || r.client.proxies.names(address) {
			return conn, err
		}
		remote, ok := conn.RemoteAddr().(*net.TCPAddr)
		switch {
		case ok && forbiddenAddress(remote.IP):
			conn.Close()
			return nil, fmt.Errorf("%s is at %s, an address of the node's own link: %w", address, remote.IP, errRefused)
		case ok && remote.IP.IsLoopback() && ctx.Value(awayKey{}) != nil:
			conn.Close()
			return nil, fmt.Errorf("%s, to which a registry leads, is the node itself: %w", address, errRefused)
		}
		return conn, nil
	}
	return t
}

// What is read of an answer that is no success: so many bytes, in so much time.
const (
	maxSaid  = 16 << 10
	timeSaid = 2 * time.Second
)

// timeReason is how long the request of reason may take. The bounds maxSaid and timeSaid hold for its answer too. It is
// short because the pull has failed already, and its error waits.
const timeReason = 5 * time.Second

// reason asks by GET for what the answer 403 to a HEAD cannot say, since it has no body: that the registry admits only
// some addresses, or has no access to its own keys. The library would ask for it as well, up to five times, and follow
// redirects. This is one request to the same URL with the same authorization.
//
// The answer may be a good one: the URL to which a registry redirects may be signed for GET alone, and some proxies
// refuse HEAD. Then it is returned as the answer to the HEAD, without its body, since both have the same header (RFC
// 9110, 9.3.2). Otherwise all that comes of it is a text: nothing if the answer is no 403.
func (t *transport) reason(head *http.Request) (good *http.Response, said string) {
	ctx, cancel := context.WithTimeout(head.Context(), timeReason)
	defer cancel()
	req := asItIs(ctx, head)
	req.Method = http.MethodGet
	resp, err := t.of(req).RoundTrip(req)
	if err != nil {
		return nil, ""
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		answer := *resp
		answer.Body, answer.Request = http.NoBody, head
		return &answer, ""
	case http.StatusForbidden:
		return nil, serverMessage(resp, cancel)
	}
	return nil, ""
}

// serverMessage is what a registry says beside a status, such as how many pulls it allows, in the form of the
// distribution specification (Error Codes). Empty: nothing in this form. stop ends the connection.
func serverMessage(resp *http.Response, stop func()) string {
	defer time.AfterFunc(timeSaid, stop).Stop()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxSaid))
	var said struct {
		Errors []struct{ Code, Message string }
	}
	if err != nil || json.Unmarshal(data, &said) != nil || len(said.Errors) == 0 {
		return ""
	}
	first := said.Errors[0]
	return wire.Printable(strings.Trim(first.Code+": "+first.Message, ": "), 500)
}

// retryAfter reads the header of that name, in seconds or as a date (RFC 9110, 10.2.3). 0: none. A date
// is by the registry's clock, which the answer tells, too: the node's may be wrong.
func retryAfter(header http.Header, now time.Time) time.Duration {
	value := header.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil && seconds > 0 {
		return time.Duration(min(seconds, 1<<20)) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	return max(0, at.Sub(now))
}

// minProgress is how many bytes a connection brings within the stall time, at the least.
const minProgress = 4 << 10

// body is the body of an answer, with a clock: only the time spent waiting for bytes counts, not the time
// that the reader takes for them.
type body struct {
	io.ReadCloser
	cancel   context.CancelFunc
	stall    time.Duration
	tooLarge error
	left     int64 // of tooLarge's bound

	waited   time.Duration // since the last minProgress bytes
	progress int64
	rate     *rate // nil: however slow the connection is, it stays
	// stalled is set once the clock has cut the connection. That may be when a read has just got its last bytes: the next
	// one tells then.
	stalled atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	timer := time.AfterFunc(max(b.stall-b.waited, time.Millisecond), func() {
		b.stalled.Store(true)
		b.cancel()
	})
	start := time.Now()
	n, err := b.ReadCloser.Read(p)
	timer.Stop()
	took := time.Since(start)
	b.waited += took
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
	case err == nil && b.rate.slow(n, took):
		b.cancel()
		err = &connectionError{text: fmt.Sprintf("less than %d bytes came in %v", leastBytes, b.rate.window), slow: true}
	case err == nil || err == io.EOF:
	case b.stalled.Load():
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
