package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Content is a blob or a manifest that is pushed.
type Content struct {
	Desc ocispec.Descriptor
	// Reader has its bytes, and is read from its start for each attempt. Nil: they are not here, and only what the
	// registry has already will do.
	Reader io.ReadSeeker
	// From are names of repositories of the same registry which have it, as paths.
	From []string
	// Progress, if it is not nil, is told how many bytes the registry has taken, from one goroutine at a time.
	Progress func(bytes int64)
}

// Push brings content into the repository, unless it is there or can be taken from another repository of the registry.
// The first host that may be pushed to is the only one that is asked. The error is errdefs.ErrNotFound where the bytes
// are neither here nor there.
func (r *Repository) Push(ctx context.Context, c Content) (there bool, err error) {
	err = r.try(ctx, docker.HostCapabilityPush, func(ctx context.Context, host docker.RegistryHost) error {
		asked := &mounting{}
		there, err = r.pushTo(context.WithValue(withKind(ctx, document), mountingKey{}, asked), host, c)
		if err == nil || len(c.From) == 0 || !asked.refused(r.explain(host, err)) {
			return err
		}
		// Who may push here need not be allowed to read there. The library goes on without the other repository only after
		// an answer 401, and is kept from that: see refusal.
		c.From = nil
		if c.Reader == nil {
			there = false
			return nil
		}
		there, err = r.pushTo(withRefusal(withKind(ctx, document)), host, c)
		return err
	})
	if err == nil && !there && c.Reader == nil {
		return false, fmt.Errorf("%s has no %s: %w", r.name.Name(), c.Desc.Digest, errdefs.ErrNotFound)
	}
	return there, err
}

func (r *Repository) pushTo(ctx context.Context, host docker.RegistryHost, c Content) (there bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resolver, name := r.resolver(host)
	pusher, err := resolver.Pusher(ctx, name)
	if err != nil {
		return false, err
	}
	desc := c.Desc
	from := slices.Clone(c.From)
	if below, _ := inRepository(host); below != "" {
		for i := range from {
			from[i] = below + "/" + from[i]
		}
	}
	desc.Annotations = mountSources(r.name, from)
	if desc.Size == 0 {
		ctx = context.WithValue(ctx, emptyKey{}, true)
	}
	writer, err := pusher.Push(ctx, desc)
	if errdefs.IsAlreadyExists(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer writer.Close()
	if c.Reader == nil {
		return false, nil
	}
	return false, upload(ctx, cancel, writer, c, r.client.cfg.Retry.Stall)
}

// upload sends content. cancel ends the request of the writer, if the registry takes nothing for the stall time.
func upload(
	ctx context.Context, cancel context.CancelCauseFunc, to content.Writer, c Content, stall time.Duration,
) error {
	_, err := c.Reader.Seek(0, io.SeekStart)
	if err != nil {
		return err
	}
	stalled := fmt.Errorf("the registry has taken nothing for %s", stall)
	watch := time.AfterFunc(stall, func() { cancel(stalled) })
	defer watch.Stop()
	writer := &watched{Writer: to, watch: watch, stall: stall}
	if c.Desc.Size == 0 {
		// Commit would return before the registry has answered: it takes the request's pipe, which Write takes otherwise.
		_, err = writer.Write(nil)
	}
	if err == nil || errors.Is(err, content.ErrReset) || errors.Is(err, io.ErrClosedPipe) {
		reader := &uploading{ReadSeeker: c.Reader, progress: c.Progress}
		err = content.Copy(ctx, writer, reader, c.Desc.Size, c.Desc.Digest)
	}
	if err != nil && context.Cause(ctx) == stalled {
		err = &connectionError{text: stalled.Error()}
	}
	return err
}

// watched is the writer of an upload, with a clock. Each piece that the connection takes starts the clock again: what
// is read at a time is far more than a slow connection takes in the stall time.
type watched struct {
	content.Writer
	watch *time.Timer
	stall time.Duration
}

// piece is how many bytes a connection takes within the stall time, at the least.
const piece = 32 << 10

func (w *watched) Write(p []byte) (n int, err error) {
	for {
		w.watch.Reset(w.stall)
		taken, err := w.Writer.Write(p[n:min(n+piece, len(p))])
		if n += taken; err != nil || n >= len(p) {
			return n, err
		}
	}
}

// Commit waits for the connection to take the rest, and for the registry to check it all, which the transport bounds.
func (w *watched) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	w.watch.Reset((commits + 1) * w.stall)
	return w.Writer.Commit(ctx, size, expected, opts...)
}

// mounting is what a registry has answered while it was asked for a blob of another repository.
type mounting struct {
	missing    atomic.Bool // it does not have the blob in the repository that is pushed to
	authorized atomic.Bool // it said so to a request with authorization
	put        atomic.Bool // bytes were put: it was not the other repository that was refused
}

type mountingKey struct{}

// answered notes the answer to a request.
func (m *mounting) answered(resp *http.Response) {
	switch req := resp.Request; {
	case req.Method == http.MethodPut:
		m.put.Store(true)
	case req.Method == http.MethodHead && resp.StatusCode == http.StatusNotFound:
		m.missing.Store(true)
		m.authorized.Store(req.Header.Get("Authorization") != "")
	}
}

// refused tells whether a push has failed since the registry did not let the other repository be used. A password that
// no answer has confirmed is taken for a wrong one, and is not sent again.
func (m *mounting) refused(f *failure) bool {
	if !m.missing.Load() || m.put.Load() {
		return false
	}
	if errdefs.IsUnauthorized(f.kind) {
		return m.authorized.Load()
	}
	return errdefs.IsPermissionDenied(f.kind) || errdefs.IsNotFound(f.kind) || errdefs.IsFailedPrecondition(f.kind)
}

// emptyKey is in the context of a push of no bytes.
type emptyKey struct{}

// bodyless returns a request that puts no bytes as one with a length, which is 0. What the library sends has none, for
// which the transport sends chunks, which not every registry takes with a PUT.
func bodyless(req *http.Request) *http.Request {
	if empty, _ := req.Context().Value(emptyKey{}).(bool); !empty || req.Method != http.MethodPut || req.Body == nil {
		return req
	}
	req.Body.Close()
	req = req.Clone(req.Context())
	req.Body, req.GetBody = http.NoBody, nil
	return req
}

// mountSources is the annotation by which the library asks a registry for a blob of another repository.
func mountSources(name reference.Named, from []string) map[string]string {
	if len(from) == 0 {
		return nil
	}
	at, err := url.Parse("registry://" + reference.Domain(name))
	if err != nil {
		return nil
	}
	return map[string]string{"containerd.io/distribution.source." + at.Hostname(): strings.Join(from, ",")}
}

// uploading is content on its way.
type uploading struct {
	io.ReadSeeker
	progress func(int64)
	n        int64
}

func (u *uploading) Read(p []byte) (int, error) {
	n, err := u.ReadSeeker.Read(p)
	if u.n += int64(n); n > 0 && u.progress != nil {
		u.progress(u.n)
	}
	return n, err
}

// Seek is for an attempt that starts over.
func (u *uploading) Seek(offset int64, whence int) (int64, error) {
	at, err := u.ReadSeeker.Seek(offset, whence)
	if err == nil {
		u.n = at
	}
	return at, err
}
