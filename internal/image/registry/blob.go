package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/ranges"
)

// Blob is a blob being read. When a connection breaks or stalls, reading goes on from the same byte, from the next
// host; the reader does not notice. Of a large one, ranges are loaded ahead over further connections. It does not check
// the digest. It belongs to one goroutine.
type Blob struct {
	ctx    context.Context
	repo   *Repository
	desc   ocispec.Descriptor
	hosts  []docker.RegistryHost // the next to ask first
	cur    io.ReadCloser
	end    int64 // up to where cur reads
	offset int64
	failed int   // attempts without progress
	since  int64 // offset at the last failure

	ahead   *ranges.Ahead // nil: all is read over one connection
	sources map[endpoint]*source
	plain   map[endpoint]bool // those that are not asked for ranges
	ranged  map[endpoint]bool // those that have sent one
	rates   map[endpoint]*rate

	endpoints []endpoint // of hosts; never changed

	mu      sync.Mutex
	used    []string          // guarded by mu
	slow    map[endpoint]bool // those that were left since they were too slow; guarded by mu
	refused map[endpoint]bool // those that have refused the blob for good; guarded by mu
}

// progress is how many bytes make an attempt count as useful.
const progress = 64 << 10

// Blob starts to read a blob. Endpoints in not, as Hosts returns them, are not asked: they sent something else for it.
// nil is returned with errdefs.ErrNotFound when no host is left.
func (r *Repository) Blob(ctx context.Context, desc ocispec.Descriptor, not map[string]bool) (*Blob, error) {
	hosts := slices.DeleteFunc(slices.Clone(r.hosts), func(h docker.RegistryHost) bool {
		return not[string(endpointOf(h))] || !h.Capabilities.Has(docker.HostCapabilityPull)
	})
	if len(hosts) == 0 {
		return nil, fmt.Errorf("no host is left for blob %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	desc.URLs = nil // what an image says of other places is not followed
	b := &Blob{
		ctx: ctx, repo: r, desc: desc, hosts: r.inOrder(hosts),
		ahead: r.client.cfg.Pool.NewAhead(ctx, desc.Size),
		rates: map[endpoint]*rate{}, slow: map[endpoint]bool{}, refused: map[endpoint]bool{},
		sources: map[endpoint]*source{}, plain: map[endpoint]bool{}, ranged: map[endpoint]bool{},
	}
	for _, h := range hosts {
		b.endpoints = append(b.endpoints, endpointOf(h))
	}
	return b, nil
}

// Hosts are the URLs of the endpoints that bytes came from, in the order in which they began to send.
func (b *Blob) Hosts() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.used)
}

func (b *Blob) use(at endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.used, string(at)) {
		b.used = append(b.used, string(at))
	}
}

// Read fills p like any reader. Its errors are final.
func (b *Blob) Read(p []byte) (int, error) {
	for {
		if b.offset >= b.desc.Size {
			return 0, io.EOF
		}
		if b.cur == nil && b.ahead != nil {
			if n := b.ahead.Read(p, b.offset); n > 0 {
				b.offset += int64(n)
				return n, nil
			}
		}
		began := time.Now()
		if b.cur == nil {
			if err := b.open(); err != nil {
				return 0, err
			}
		}
		n, err := b.read(p)
		if b.ahead != nil {
			b.ahead.Took(time.Since(began))
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// read reads from the connection that there is.
func (b *Blob) read(p []byte) (int, error) {
	began := time.Now()
	n, err := b.cur.Read(p[:min(int64(len(p)), b.end-b.offset)])
	b.offset += int64(n)
	host := b.hosts[0]
	switch {
	case b.offset == b.end:
		b.drop()
	case err != nil:
		b.drop()
		if err == io.EOF {
			err = fmt.Errorf("the connection ended after %d of %d bytes", b.offset, b.desc.Size)
		}
		f := b.repo.explain(host, err)
		passing, lasting := f, (*failure)(nil)
		if !f.transient {
			passing, lasting = nil, f
		}
		if f.slow { // no attempt has failed: something has come, and the next host goes on
			b.repo.askLast(host, "registry host sends too slowly, it is asked last for the rest of this image, and for "+
				"others for a minute", f)
		} else {
			b.repo.waited(host, began, f)
			if err := b.wait(passing, lasting); err != nil {
				return n, err
			}
		}
		// The host that broke is asked last.
		b.hosts = append(b.hosts[1:len(b.hosts):len(b.hosts)], host)
	}
	return n, nil
}

// open asks the hosts for what comes next. A host that has refused for good, such as a mirror that wants other
// credentials, is not asked again, and does not end the attempts at the others.
func (b *Blob) open() error {
	ask := make([]int, 0, len(b.hosts)) // of b.hosts
	for i := range b.hosts {
		ask = append(ask, i)
	}
	var lasting *failure
	for {
		var passing *failure
		var again []int
		for _, i := range ask {
			h := b.hosts[i]
			rc, err := b.fetch(h)
			if err == nil {
				b.hosts = append(slices.Clone(b.hosts[i:]), b.hosts[:i]...)
				b.cur = rc
				b.use(endpointOf(h))
				return nil
			}
			if b.ctx.Err() != nil {
				return context.Cause(b.ctx)
			}
			f := b.repo.explain(h, err)
			b.repo.log.Debug("registry host failed", "host", h.Host, "blob", b.desc.Digest, "offset", b.offset, "error", f)
			b.repo.complain(h, f)
			if f.transient {
				again, passing = append(again, i), worse(passing, f)
			} else {
				b.refuses(endpointOf(h))
				lasting = worse(lasting, f)
			}
		}
		if err := b.wait(passing, lasting); err != nil {
			return err
		}
		ask = again
	}
}

// fetch opens what comes next at one host, with a connection of the pool.
func (b *Blob) fetch(host docker.RegistryHost) (io.ReadCloser, error) {
	pool := b.repo.client.cfg.Pool
	if err := pool.Acquire(b.ctx, host.Host); err != nil {
		return nil, err
	}
	began := time.Now()
	rc, err := b.fetchRange(host)
	if rc == nil && err == nil {
		rc, err = b.fetchRest(host)
	}
	if err != nil {
		pool.Release(host.Host)
		if b.ctx.Err() == nil {
			b.repo.waited(host, began, b.repo.explain(host, err))
		}
		return nil, err
	}
	b.repo.answered(host)
	return &counted{ReadCloser: rc, release: func() { pool.Release(host.Host) }}, nil
}

// plainAfter is after how many attempts without progress a host that has sent no range yet is asked for the rest of the
// blob: something on the way may cut connections that ask for ranges.
const plainAfter = 2

// fetchRange opens the next range. Both results are nil where the rest is to be asked for over one connection.
func (b *Blob) fetchRange(host docker.RegistryHost) (io.ReadCloser, error) {
	at := endpointOf(host)
	if b.ahead == nil || b.plain[at] || b.failed >= plainAfter && !b.ranged[at] {
		return nil, nil
	}
	src := b.sources[at]
	if src == nil {
		src = newSource(b, host)
		b.sources[at] = src
	}
	end := b.ahead.Claim(b.offset)
	rc, part, err := src.open(b.watch(host), b.offset, end)
	switch {
	case err == nil && part.whole: // from the first byte on: this is what would be asked for next
		b.ahead.Stop()
		b.end = b.desc.Size
		return rc, nil
	case err == nil:
		b.end, b.ranged[at] = min(part.to, end), true
		b.ahead.Follow(src)
		return rc, nil
	}
	b.ahead.Unclaim()
	if b.ctx.Err() == nil && withoutRanges(err) {
		b.repo.log.Info("registry host does not send ranges, a layer is read over one connection", "host", host.Host,
			"blob", b.desc.Digest, "offset", b.offset, "error", b.repo.explain(host, err))
		b.plain[at] = true
		return nil, nil
	}
	return nil, err
}

// withoutRanges tells whether a host that has refused a range may do better without.
func withoutRanges(err error) bool {
	var unusable *rangeError
	var status *statusError
	var unexpected remoteerrors.ErrUnexpectedStatus
	var token *tokenError
	switch {
	case errors.As(err, &token):
		return false
	case errors.As(err, &unusable):
		return true
	case errors.As(err, &status):
		return status.code >= 500 && status.code != http.StatusServiceUnavailable
	case errors.As(err, &unexpected):
		return unexpected.StatusCode != http.StatusUnauthorized && unexpected.StatusCode != http.StatusForbidden
	}
	return false
}

// fetchRest opens the rest of the blob. What was loaded ahead is dropped, unless the host fails: the next one may send
// ranges.
func (b *Blob) fetchRest(host docker.RegistryHost) (io.ReadCloser, error) {
	rc, err := b.repo.fetchFrom(b.watch(host), host, b.desc, b.offset)
	if err != nil {
		return nil, err
	}
	if b.ahead != nil {
		b.ahead.Stop()
	}
	b.end = b.desc.Size
	return rc, nil
}

// fetch opens a part of a blob at a host, or where that redirects to.
func (r *Repository) fetch(ctx context.Context, host docker.RegistryHost, desc ocispec.Descriptor, part *span,
) (io.ReadCloser, error) {
	return r.fetchFrom(context.WithValue(ctx, spanKey{}, part), host, desc, 0)
}

// fetchFrom opens a blob at a host from a byte on. The first byte is read too: the library asks for nothing before.
func (r *Repository) fetchFrom(ctx context.Context, host docker.RegistryHost, desc ocispec.Descriptor, offset int64,
) (io.ReadCloser, error) {
	ctx = withKind(quiet(context.WithValue(ctx, sizeKey{}, desc.Size)), blob)
	resolver, name := r.resolver(host)
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return nil, err
	}
	rc, err := fetcher.Fetch(unscoped(ctx, host), desc)
	if err != nil {
		return nil, err
	}
	if offset > 0 {
		seeker, ok := rc.(io.Seeker)
		if !ok {
			rc.Close()
			return nil, fmt.Errorf("blob reader of type %T cannot seek", rc)
		}
		if _, err := seeker.Seek(offset, io.SeekStart); err != nil {
			rc.Close()
			return nil, err
		}
	}
	var first [1]byte
	n, err := rc.Read(first[:])
	if n == 0 {
		rc.Close()
		if err == nil || err == io.EOF {
			err = fmt.Errorf("an empty answer at byte %d of %d", offset, desc.Size)
		}
		return nil, err
	}
	return &prefixed{first: first[:n], ReadCloser: rc}, nil
}

// wait counts an attempt that has failed, and pauses before the next one. passing is why another attempt may do better;
// nil: none will. lasting is what no attempt makes better; nil: nothing. The worse of them comes back when there is no
// further attempt.
func (b *Blob) wait(passing, lasting *failure) error {
	if b.ctx.Err() != nil {
		return context.Cause(b.ctx)
	}
	retry := b.repo.client.cfg.Retry
	if b.offset-b.since >= progress {
		b.failed = 0
	}
	b.since = b.offset
	b.failed++
	if passing == nil || b.failed >= retry.Attempts || passing.retryAfter > retry.MaxBackoff {
		return fmt.Errorf("blob %s: %w", b.desc.Digest, worse(lasting, passing))
	}
	return pause(b.ctx, retry, b.failed, max(passing.retryAfter, time.Millisecond))
}

func (b *Blob) drop() {
	if b.cur != nil {
		b.cur.Close()
		b.cur = nil
		if b.ahead != nil {
			b.ahead.Unclaim()
		}
	}
}

// Close drops the connections, and what was loaded ahead.
func (b *Blob) Close() error {
	b.drop()
	if b.ahead != nil {
		b.ahead.Close()
		b.ahead = nil
		for _, t := range b.repo.transports {
			t.base.CloseIdleConnections()
		}
	}
	return nil
}

// counted gives the connection back that a reader has of the pool.
type counted struct {
	io.ReadCloser
	release func()
}

func (c *counted) Close() error {
	defer c.release()
	return c.ReadCloser.Close()
}

// prefixed gives back what was read to see that something comes.
type prefixed struct {
	first []byte
	io.ReadCloser
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.first) > 0 {
		n := copy(b, p.first)
		p.first = p.first[n:]
		return n, nil
	}
	return p.ReadCloser.Read(b)
}
