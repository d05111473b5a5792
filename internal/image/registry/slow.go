package registry

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// A host that sends a few bytes now and then does not stall, and would be asked for the rest of a layer for hours. It
// is left for another one, if there is one that has not been left itself: its connection has brought less than
// leastBytes in slowWindow stall times, of the time in which berthd waited for bytes. By default this is 4 KiB/s over a
// minute, for one of up to 16 connections. Nothing is sent twice, since the other host goes on from the same byte.
const (
	leastBytes = 256 << 10
	slowWindow = 2
)

// rate is the clock of the connections to a host that one goroutine reads, one after another. A nil rate never says
// slow.
type rate struct {
	window time.Duration
	leave  func() bool // called when a connection is too slow. False: it is to stay
	waited time.Duration
	bytes  int64
}

type rateKey struct{}

// rateOf is for the connection of a request; nil: it stays, however slow it is.
func rateOf(ctx context.Context) *rate {
	r, _ := ctx.Value(rateKey{}).(*rate)
	return r
}

// slow is told that so many bytes have come after so long a wait. True: the connection is to be cut.
func (r *rate) slow(n int, waited time.Duration) bool {
	if r == nil {
		return false
	}
	r.bytes += int64(n)
	r.waited += waited
	few := r.bytes < leastBytes
	if few && r.waited < r.window {
		return false
	}
	r.bytes, r.waited = 0, 0
	return few && r.leave()
}

// watch has a connection of the reader to a host cut when it is too slow, and the host left, unless it has been left
// before. A reader whose requests are short has one clock for all of them.
func (b *Blob) watch(host docker.RegistryHost) context.Context {
	at := endpointOf(host)
	if b.rates[at] == nil {
		b.rates[at] = b.newRate(func() bool { return b.leave(host) })
	}
	return b.watched(b.ctx, at, b.rates[at])
}

// watchAhead is the same for a connection that loads ahead. The range is left to the reader, which finds out whether
// the host is slow or only this connection.
func (b *Blob) watchAhead(ctx context.Context, at endpoint) context.Context {
	return b.watched(ctx, at, b.newRate(func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.another(at)
	}))
}

func (b *Blob) newRate(leave func() bool) *rate {
	return &rate{window: slowWindow * b.repo.client.cfg.Retry.Stall, leave: leave}
}

func (b *Blob) watched(ctx context.Context, at endpoint, r *rate) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.endpoints) == 1 || b.slow[at] {
		return ctx
	}
	return context.WithValue(ctx, rateKey{}, r)
}

// leave notes that a host is too slow. False: there is no other host to go on with.
func (b *Blob) leave(host docker.RegistryHost) bool {
	at := endpointOf(host)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.another(at) {
		return false
	}
	b.slow[at] = true
	return true
}

// another tells whether the blob can be expected from another host than the one at this endpoint. mu is held.
func (b *Blob) another(at endpoint) bool {
	for _, other := range b.endpoints {
		if other != at && !b.slow[other] && !b.refused[other] {
			return true
		}
	}
	return false
}

// left tells whether a host has been left for another one.
func (b *Blob) left(at endpoint) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.slow[at] && b.another(at)
}

// refuses notes that a host has refused the blob for good.
func (b *Blob) refuses(at endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[at] = true
}
