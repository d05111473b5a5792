// Package gate counts calls that are under way, and refuses new ones when the keeper is about to be upgraded or to end.
package gate

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// ErrUpgrading is the error of calls that are not let in. The client makes them again.
var ErrUpgrading = fmt.Errorf("the keeper is being upgraded: %w", errdefs.ErrUnavailable)

// Gate lets calls in, unless the keeper is about to be replaced or to end. A call that changes something must be let in
// first: one that is not could be cut in two.
type Gate struct {
	mu       sync.Mutex
	closed   bool
	stop     chan struct{} // closed with the gate
	inflight sync.WaitGroup
}

// New returns a gate that is open.
func New() *Gate { return &Gate{stop: make(chan struct{})} }

// Begin lets a call in; the caller calls End when it is over. The error is ErrUpgrading.
func (g *Gate) Begin() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return ErrUpgrading
	}
	g.inflight.Add(1)
	return nil
}

// Again is Begin for something that a call begins which has been let in and has not ended.
func (g *Gate) Again() { g.inflight.Add(1) }

// End is called when something that was let in is over.
func (g *Gate) End() { g.inflight.Done() }

// Stopped is closed when the gate closes: what only waits goes away then and is asked for again.
func (g *Gate) Stopped() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stop
}

// Close lets nothing more in. It is false for a gate that is closed.
func (g *Gate) Close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.closed = true
	close(g.stop)
	return true
}

// Open undoes Close.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
	g.stop = make(chan struct{})
}

// Wait returns when everything that was let in has ended.
func (g *Gate) Wait() { g.inflight.Wait() }
