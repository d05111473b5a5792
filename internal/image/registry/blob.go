package registry

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Blob is a blob being read. When a connection breaks or stalls, reading goes on from the same byte, from the next
// host; the reader does not notice. It does not check the digest. It belongs to one goroutine.
type Blob struct {
	ctx    context.Context
	repo   *Repository
	desc   ocispec.Descriptor
	hosts  []docker.RegistryHost // the next to ask first
	cur    io.ReadCloser
	offset int64
	failed int   // attempts without progress
	since  int64 // offset at the last failure
	used   map[string]bool
}

// progress is how many bytes make an attempt count as useful.
const progress = 64 << 10

// Blob starts to read a blob. Hosts in not are not asked: they sent something else for it. nil is returned with
// errdefs.ErrNotFound when no host is left.
func (r *Repository) Blob(ctx context.Context, desc ocispec.Descriptor, not map[string]bool) (*Blob, error) {
	hosts := slices.DeleteFunc(slices.Clone(r.hosts), func(h docker.RegistryHost) bool {
		return not[h.Host] || !h.Capabilities.Has(docker.HostCapabilityPull)
	})
	if len(hosts) == 0 {
		return nil, fmt.Errorf("no host is left for blob %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	desc.URLs = nil // what an image says of other places is not followed
	return &Blob{ctx: ctx, repo: r, desc: desc, hosts: hosts, used: map[string]bool{}}, nil
}

// Hosts are those that bytes came from.
func (b *Blob) Hosts() []string {
	var hosts []string
	for h := range b.used {
		hosts = append(hosts, h)
	}
	return hosts
}

// Read fills p like any reader. Its errors are final.
func (b *Blob) Read(p []byte) (int, error) {
	for {
		if b.offset >= b.desc.Size {
			return 0, io.EOF
		}
		if b.cur == nil {
			if err := b.open(); err != nil {
				return 0, err
			}
		}
		n, err := b.cur.Read(p[:min(int64(len(p)), b.desc.Size-b.offset)])
		b.offset += int64(n)
		if err != nil {
			host := b.hosts[0]
			b.drop()
			if b.offset < b.desc.Size {
				if err == io.EOF {
					err = fmt.Errorf("the connection ended after %d of %d bytes", b.offset, b.desc.Size)
				}
				if err := b.wait(b.repo.explain(host, err)); err != nil {
					return n, err
				}
				// The host that broke is asked last.
				b.hosts = append(b.hosts[1:len(b.hosts):len(b.hosts)], host)
			}
		}
		if n > 0 {
			return n, nil
		}
	}
}

// open asks the hosts for the rest.
func (b *Blob) open() error {
	for {
		var worst *failure
		for i, h := range b.hosts {
			rc, err := b.fetch(h)
			if err == nil {
				b.hosts = append(slices.Clone(b.hosts[i:]), b.hosts[:i]...)
				b.cur = rc
				b.used[h.Host] = true
				return nil
			}
			if b.ctx.Err() != nil {
				return context.Cause(b.ctx)
			}
			f := b.repo.explain(h, err)
			b.repo.log.Debug("registry host failed", "host", h.Host, "blob", b.desc.Digest, "offset", b.offset, "error", f)
			worst = worse(worst, f)
		}
		if err := b.wait(worst); err != nil {
			return err
		}
	}
}

// fetch opens the rest of the blob at one host. The first byte is read too: the library asks for nothing before.
func (b *Blob) fetch(host docker.RegistryHost) (io.ReadCloser, error) {
	ctx := withKind(quiet(b.ctx), blob)
	fetcher, err := b.repo.resolver(host).Fetcher(ctx, b.repo.name.String())
	if err != nil {
		return nil, err
	}
	rc, err := fetcher.Fetch(ctx, b.desc)
	if err != nil {
		return nil, err
	}
	if b.offset > 0 {
		seeker, ok := rc.(io.Seeker)
		if !ok {
			rc.Close()
			return nil, fmt.Errorf("blob reader of type %T cannot seek", rc)
		}
		if _, err := seeker.Seek(b.offset, io.SeekStart); err != nil {
			rc.Close()
			return nil, err
		}
	}
	var first [1]byte
	n, err := rc.Read(first[:])
	if n == 0 {
		rc.Close()
		if err == nil || err == io.EOF {
			err = fmt.Errorf("an empty answer at byte %d of %d", b.offset, b.desc.Size)
		}
		return nil, err
	}
	return &prefixed{first: first[:n], ReadCloser: rc}, nil
}

// wait counts a failure, and pauses before the next attempt; the failure comes back when there is none.
func (b *Blob) wait(f *failure) error {
	if b.ctx.Err() != nil {
		return context.Cause(b.ctx)
	}
	retry := b.repo.client.cfg.Retry
	if b.offset-b.since >= progress {
		b.failed = 0
	}
	b.since = b.offset
	b.failed++
	if !f.transient || b.failed >= retry.Attempts || f.retryAfter > retry.MaxBackoff {
		return fmt.Errorf("blob %s: %w", b.desc.Digest, f)
	}
	return pause(b.ctx, retry, b.failed, max(f.retryAfter, time.Millisecond))
}

func (b *Blob) drop() {
	if b.cur != nil {
		b.cur.Close()
		b.cur = nil
	}
}

// Close drops the connection.
func (b *Blob) Close() error {
	b.drop()
	return nil
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
