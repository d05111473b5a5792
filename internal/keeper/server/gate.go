package server

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

var errUpgrading = fmt.Errorf("the keeper is being upgraded: %w", errdefs.ErrUnavailable)

// gate lets calls in, unless the keeper is about to be replaced or to end. A call that changes something must be let in
// first: one that is not could be cut in two.
type gate struct {
	mu       sync.Mutex
	closed   bool
	stop     chan struct{} // closed with the gate
	inflight sync.WaitGroup
}

func newGate() *gate { return &gate{stop: make(chan struct{})} }

// begin lets a call in; the caller calls end when it is over. The error is errUpgrading.
func (g *gate) begin() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errUpgrading
	}
	g.inflight.Add(1)
	return nil
}

// again is begin for something that a call begins which has been let in and has not ended.
func (g *gate) again() { g.inflight.Add(1) }

func (g *gate) end() { g.inflight.Done() }

// stopped is closed when the gate closes: what only waits goes away then and is asked for again.
func (g *gate) stopped() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stop
}

// close lets nothing more in. It is false for a gate that is closed.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.closed = true
	close(g.stop)
	return true
}

// open undoes close.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
	g.stop = make(chan struct{})
}

// wait returns when everything that was let in has ended.
func (g *gate) wait() { g.inflight.Wait() }
