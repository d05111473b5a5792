// Package gate counts calls that are under way, and refuses new ones when the keeper is about to be upgraded or to end.
package gate

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// ErrUpgrading is the error of calls that the gate refuses. The client makes them again.
var ErrUpgrading = fmt.Errorf("the keeper is being upgraded: %w", errdefs.ErrUnavailable)

// Gate lets calls begin, unless the keeper is about to be replaced or to end. A call that changes something must begin
// with it: otherwise the upgrade could interrupt the call half way.
type Gate struct {
	inflight Tasks

	mu     sync.Mutex
	closed bool
	stop   chan struct{} // closed with the gate
}

// New returns a gate that is open.
func New() *Gate { return &Gate{stop: make(chan struct{})} }

// Begin lets a call begin, or returns ErrUpgrading. The caller calls End when the call is over.
func (g *Gate) Begin() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return ErrUpgrading
	}
	g.inflight.Begin()
	return nil
}

// Again is Begin for work that is started by a call which has begun and has not ended.
func (g *Gate) Again() { g.inflight.Begin() }

// End is called when the work of Begin or Again is over.
func (g *Gate) End() { g.inflight.End() }

// Stopped is closed when the gate closes. Calls that only wait return then, and the client makes them again.
func (g *Gate) Stopped() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stop
}

// Close refuses all later calls. It returns false if the gate is closed already.
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

// Idle returns a channel that is closed as soon as everything that was let in has ended.
func (g *Gate) Idle() <-chan struct{} { return g.inflight.Idle() }

// Wait returns when everything that was let in has ended.
func (g *Gate) Wait() { g.inflight.Wait() }
