// Package eventfeed hands events to those who follow them. All followers get all events in one order. Whoever publishes
// an event never waits: a follower that does not read is cut off, and has to follow and list again.
package eventfeed

import (
	"context"
	"sync"
)

// Backlog is how many events a follower may be behind before it is cut off.
const Backlog = 1024

// Feed is what happens to objects of one kind. Its methods may be called concurrently. The zero value is a feed that
// nobody follows.
type Feed[E any] struct {
	mu        sync.Mutex // guards followers and closed
	followers map[chan E]struct{}
	closed    bool
}

// Follow returns the events from now on until ctx ends; the channel is closed then, and also when the follower is too
// far behind, and by Close.
func (f *Feed[E]) Follow(ctx context.Context) <-chan E {
	ch, open := f.add()
	if open {
		context.AfterFunc(ctx, func() { f.drop(ch) })
	}
	return ch
}

// add returns the channel of a new follower, and whether it is open.
func (f *Feed[E]) add() (ch chan E, open bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		ch = make(chan E) // nothing will ever be in it
		close(ch)
		return ch, false
	}
	ch = make(chan E, Backlog)
	if f.followers == nil {
		f.followers = map[chan E]struct{}{}
	}
	f.followers[ch] = struct{}{}
	return ch, true
}

func (f *Feed[E]) drop(ch chan E) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.followers[ch]; ok {
		delete(f.followers, ch)
		close(ch)
	}
}

// Close ends all that Follow has returned, and what it will return.
func (f *Feed[E]) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for ch := range f.followers {
		delete(f.followers, ch)
		close(ch)
	}
}

// Publish makes an event and hands it out in one step, so that followers get events in the order of their times and
// of the states that they tell of. No event is made if nobody follows. make must not call the feed.
func (f *Feed[E]) Publish(make func() E) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.followers) == 0 {
		return
	}
	e := make()
	for ch := range f.followers {
		select {
		case ch <- e:
		default:
			delete(f.followers, ch)
			close(ch)
		}
	}
}
