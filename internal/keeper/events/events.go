// Package events notifies subscribers of containers that have changed.
package events

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// Subscriber gets events of changes. It queues names only, so a slow subscriber gets fewer events, with newer statuses.
type Subscriber struct {
	mu    sync.Mutex
	dirty map[string]bool
	order []string
	Wake  chan struct{} // there is something to take
	Quit  chan struct{} // closed when the subscriber is to go
	once  sync.Once
}

func (s *Subscriber) mark(id string) {
	s.mu.Lock()
	if !s.dirty[id] {
		s.dirty[id] = true
		s.order = append(s.order, id)
	}
	s.mu.Unlock()
	select {
	case s.Wake <- struct{}{}:
	default:
	}
}

// Take returns the IDs of what has changed since the last Take, in the order of the first change.
func (s *Subscriber) Take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.order
	s.order = nil
	clear(s.dirty)
	return ids
}

// New returns events without subscribers.
func New() *Events { return &Events{subs: map[string]*Subscriber{}} }

// Events tells subscribers of changes.
type Events struct {
	mu   sync.Mutex
	subs map[string]*Subscriber
}

// Publish tells all subscribers that a record has changed or is gone.
func (e *Events) Publish(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, sub := range e.subs {
		sub.mark(id)
	}
}

// Subscribe adds a subscriber of this name. The error is ErrAlreadyExists.
func (e *Events) Subscribe(id string) (*Subscriber, error) {
	sub := &Subscriber{dirty: map[string]bool{}, Wake: make(chan struct{}, 1), Quit: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.subs[id]; ok || id == "" {
		return nil, fmt.Errorf("watch %q: %w", id, errdefs.ErrAlreadyExists)
	}
	e.subs[id] = sub
	return sub, nil
}

// Unsubscribe ends a subscription.
func (e *Events) Unsubscribe(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.subs, id)
}

// Quit tells a subscriber to go. It may be called for one that is not there.
func (e *Events) Quit(id string) {
	e.mu.Lock()
	sub := e.subs[id]
	e.mu.Unlock()
	if sub != nil {
		sub.once.Do(func() { close(sub.Quit) })
	}
}
