package stream

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/moby/spdystream/spdy"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	// forwardMost bounds the streams of a client that forwards ports: two for each connection to a port.
	forwardMost = 1024
	// forwardsLeast is how many connections to ports a client may always have, and forwardsMost how many all clients
	// together may have beyond that. Each takes about 100 KiB, and a descriptor.
	forwardsLeast = 16
	forwardsMost  = 4096
	// resetGrace is how long the pod's side of a connection has to end after the client has reset its own.
	resetGrace = 2 * time.Second
)

// serveSPDY forwards for a SPDY client, which opens two streams for each connection: one for its data, and one on which
// it is told what has failed. It returns when the connection is closed.
func (f *forwarder) serveSPDY(w http.ResponseWriter, req *http.Request) {
	log := f.server.cfg.Log
	if _, err := httpstream.Handshake(req, w, portforward.SupportedProtocols); err != nil {
		log.DebugContext(f.ctx, "SPDY", "error", err) // the client has the answer
		return
	}
	c := f.server.upgradeSPDY(w, req, f.server.cfg.IdleTimeout, forwardMost,
		func(_ spdy.StreamId, header http.Header) (reads, ok bool) {
			kind := header.Get(streamType)
			_, err := portOf(header.Get(portHeader))
			return kind == portforward.StreamTypeData,
				err == nil && (kind == portforward.StreamTypeData || kind == portforward.StreamTypeError)
		})
	if c == nil {
		return
	}
	defer c.close()
	waiting := &pairs{forwarder: f, waiting: map[string]*pair{},
		share: share{of: f.server.forwards, least: forwardsLeast, most: forwardMost / 2}}
	for s := c.accept(f.ctx); s != nil; s = c.accept(f.ctx) {
		waiting.add(s)
	}
}

// pairs are a client's streams, by two.
type pairs struct {
	*forwarder
	mu      sync.Mutex       // guards the fields below
	waiting map[string]*pair // those whose other stream has not come
	share   share            // of what is forwarded
}

type pair struct {
	data, failure *spdyStream
	timeout       *time.Timer
}

func (p *pairs) add(s *spdyStream) {
	key := requestOf(s)
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.waiting[key]
	if at == nil {
		// The streams that a client has at a time are bounded. One that it has reset does not count among them, and yet
		// waits here for its other one.
		if len(p.waiting) >= forwardMost {
			_ = s.Reset()
			return
		}
		at = &pair{}
		at.timeout = time.AfterFunc(p.server.cfg.CreationTimeout, func() { p.giveUp(key, at) })
		p.waiting[key] = at
	}
	switch {
	case s.kind == portforward.StreamTypeData && at.data == nil:
		at.data = s
	case s.kind == portforward.StreamTypeError && at.failure == nil:
		at.failure = s
	default:
		_ = s.Reset()
		return
	}
	if at.data == nil || at.failure == nil {
		return
	}
	at.timeout.Stop()
	delete(p.waiting, key)
	if p.share.take(1) {
		p.open.Go(func() {
			defer p.leave()
			p.forwardPair(at)
		})
		return
	}
	p.open.Go(func() {
		fmt.Fprintf(at.failure, "error forwarding port %s to pod %s: too many connections are forwarded at a time",
			at.data.port, p.sandbox)
		_ = at.data.Reset()
		_ = at.failure.Reset()
	})
}

func (p *pairs) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.share.give(1)
}

// giveUp drops a stream whose other one has not come.
func (p *pairs) giveUp(key string, at *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[key] != at {
		return
	}
	delete(p.waiting, key)
	if at.data != nil {
		_ = at.data.Reset()
	}
	if at.failure != nil {
		_ = at.failure.Reset()
	}
}

// requestOf is what the two streams of a connection have in common. Clients of 2015 give it no name: the stream of data
// is opened next to the other one there.
func requestOf(s *spdyStream) string {
	switch {
	case s.request != "":
		return s.request
	case s.kind == portforward.StreamTypeData:
		return strconv.Itoa(int(s.id) - 2)
	}
	return strconv.Itoa(int(s.id))
}

func (f *forwarder) forwardPair(at *pair) {
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	// The reader finds the end of the stream at once, which is enough for a pod that ends its side for it.
	at.data.whenReset(func() { time.AfterFunc(resetGrace, cancel) })
	port, _ := portOf(at.data.port) // it was when the stream was opened
	err := f.forward(ctx, port, at.data, at.failure)
	if err == nil {
		_ = at.failure.Close()
	}
	_ = at.failure.Reset()
}
