package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// source opens ranges of a blob at one host. Where the host redirects to another place, such as an object store, that
// place is asked for the further ranges, until it refuses: its URL may be signed for some minutes.
type source struct {
	blob *Blob
	repo *Repository // of blob
	host docker.RegistryHost
	desc ocispec.Descriptor // of blob

	// looking is held while the host is asked where the blob is, so that one request asks and not as many as there are
	// connections. It guards known.
	looking chan struct{}
	known   bool     // the host has answered
	at      *url.URL // nil: the host sends the bytes itself
}

func newSource(b *Blob, h docker.RegistryHost) *source {
	return &source{blob: b, repo: b.repo, host: h, desc: b.desc, looking: make(chan struct{}, 1)}
}

// took notes that the host has sent something.
func (s *source) took() { s.blob.use(endpointOf(s.host)) }

// Host is the configured host's name, wherever it redirects to: a registry that redirects each request to another name
// gets no more connections than any other.
func (s *source) Host() string { return s.host.Host }

// Open is for ranges that are loaded ahead. An answer with the whole blob is an error.
func (s *source) Open(ctx context.Context, from, to int64) (io.ReadCloser, error) {
	rc, _, err := s.open(s.blob.watchAhead(ctx, endpointOf(s.host)), from, to)
	return rc, err
}

// open asks for a range. The span says what the answer is.
func (s *source) open(ctx context.Context, from, to int64) (io.ReadCloser, *span, error) {
	select {
	case s.looking <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	if s.known {
		at := s.at
		<-s.looking
		rc, part, err := s.ask(ctx, at, from, to)
		if at == nil || !stale(err) {
			return rc, part, err
		}
		return s.look(ctx, at, from, to)
	}
	defer func() { <-s.looking }()
	return s.learn(ctx, from, to)
}

// look asks the host anew where the blob is, unless another connection has found out meanwhile.
func (s *source) look(ctx context.Context, stale *url.URL, from, to int64) (io.ReadCloser, *span, error) {
	select {
	case s.looking <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	if s.at != stale {
		at := s.at
		<-s.looking
		return s.ask(ctx, at, from, to)
	}
	defer func() { <-s.looking }()
	return s.learn(ctx, from, to)
}

// learn asks the host, and remembers where the answer came from. looking is held.
func (s *source) learn(ctx context.Context, from, to int64) (io.ReadCloser, *span, error) {
	part := &span{from: from, to: to, size: s.desc.Size}
	rc, err := s.repo.fetch(ctx, s.host, s.desc, part)
	if err != nil {
		return nil, nil, err
	}
	s.known, s.at = true, nil
	if part.moved {
		s.at = part.at
	}
	s.took()
	return rc, part, nil
}

// ask asks one place: a URL, or the host itself.
func (s *source) ask(ctx context.Context, at *url.URL, from, to int64) (io.ReadCloser, *span, error) {
	part := &span{from: from, to: to, size: s.desc.Size}
	var rc io.ReadCloser
	var err error
	if at == nil {
		rc, err = s.repo.fetch(ctx, s.host, s.desc, part)
	} else {
		rc, err = s.located(ctx, at, part)
	}
	if err != nil {
		return nil, nil, err
	}
	s.took()
	return rc, part, nil
}

// located asks the place to which the host has redirected. What is sent there is what a redirect sends: no credentials,
// and no headers of hosts.toml.
func (s *source) located(ctx context.Context, at *url.URL, part *span) (io.ReadCloser, error) {
	quiet := withKind(quiet(ctx), document) // of a token that the place may want
	req, err := http.NewRequestWithContext(context.WithValue(withKind(quiet, located), spanKey{}, part),
		http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", s.repo.client.cfg.UserAgent)
	req.Header.Set("Accept", "*/*")
	if err := s.host.Authorizer.Authorize(quiet, req); err != nil {
		return nil, err
	}
	client := *s.host.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusPartialContent && resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, &staleError{fmt.Sprintf("%s://%s%s: %s", at.Scheme, at.Host, at.Path, resp.Status)}
	}
	return resp.Body, nil
}

// staleError is a place that does not send a range any more, which it may have sent before.
type staleError struct{ text string }

func (e *staleError) Error() string { return e.text }

// stale tells whether a place should be looked up anew. Too many requests are no reason: the host would get them.
func stale(err error) bool {
	var status *statusError
	return err != nil && !errors.As(err, &status)
}

// Again is for ranges that are loaded ahead. They are asked for twice; the reader is more patient.
func (s *source) Again(err error, failed int) (time.Duration, bool) {
	f := s.repo.explain(s.host, err)
	s.repo.log.Debug("registry host failed", "host", s.host.Host, "blob", s.desc.Digest, "error", f)
	s.repo.complain(s.host, f)
	retry := s.repo.client.cfg.Retry
	if err == io.EOF && failed == 0 { // the host sends shorter ranges than it is asked for
		return 0, true
	}
	slow := f.slow || s.blob.left(endpointOf(s.host)) // the reader finds out who goes on
	if slow || failed > 1 || !f.transient && err != io.EOF || f.retryAfter > retry.MaxBackoff {
		return 0, false
	}
	return max(retry.Backoff, f.retryAfter), true
}

// complain tells the pool of a host that is asked too often.
func (r *Repository) complain(host docker.RegistryHost, f *failure) {
	if f != nil && f.busy {
		r.client.cfg.Pool.Complained(host.Host, f.retryAfter)
	}
}
