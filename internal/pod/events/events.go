// Package events sends the events of pods and containers to subscribers, as a kubelet with evented PLEG expects them.
package events

import (
	"context"
	"sync"
	"time"

	"berth/internal/model"
	"berth/internal/pod/index"
)

// eventBacklog is how many events a subscriber may be behind before it is cut off: it comes back and lists.
const eventBacklog = 1024

// hub hands events to subscribers and never waits for one.
type hub struct {
	mu     sync.Mutex // guards subs and closed
	subs   map[chan model.ContainerEvent]struct{}
	closed bool
}

func (h *hub) init() { h.subs = map[chan model.ContainerEvent]struct{}{} }

func (h *hub) subscribe() chan model.ContainerEvent {
	ch := make(chan model.ContainerEvent, eventBacklog)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		close(ch)
		return ch
	}
	h.subs[ch] = struct{}{}
	return ch
}

func (h *hub) drop(ch chan model.ContainerEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.subs[ch]; ok {
		delete(h.subs, ch)
		close(ch)
	}
}

// Close ends all subscriptions, and those to come.
func (h *hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for ch := range h.subs {
		delete(h.subs, ch)
		close(ch)
	}
}

// publish makes an event and hands it out in one step, so that subscribers get events in the order of their times and
// of the states that they tell of. It does not make what nobody wants.
func (h *hub) publish(make func() model.ContainerEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs) == 0 {
		return
	}
	e := make()
	for ch := range h.subs {
		select {
		case ch <- e:
		default:
			delete(h.subs, ch)
			close(ch)
		}
	}
}

// Feed tells subscribers what happens to the pods of an index. Its methods may be called concurrently.
type Feed struct {
	hub
	index *index.Index
}

// New is a feed that nobody follows.
func New(x *index.Index) *Feed {
	ev := &Feed{index: x}
	ev.init()
	return ev
}

// Follow returns what happens to pods and containers from now on until ctx ends; the channel is closed then, and also
// when the subscriber is too far behind.
func (ev *Feed) Follow(ctx context.Context) <-chan model.ContainerEvent {
	ch := ev.subscribe()
	context.AfterFunc(ctx, func() { ev.drop(ch) })
	return ch
}

// Tell publishes an event with the state of the whole pod, as evented kubelets want it. containerID is the sandbox's
// own ID for an event of the sandbox.
func (ev *Feed) Tell(s *index.Sandbox, containerID string, what model.ContainerEventType) {
	ev.publish(func() model.ContainerEvent {
		e := model.ContainerEvent{
			ContainerID: containerID,
			SandboxID:   s.ID(),
			Type:        what,
			At:          time.Now(),
			Sandbox:     s.Status(),
		}
		// A kubelet forgets the whole pod once it hears that a sandbox of it is gone. It must not while another attempt
		// lives, so that it is not told then whose the sandbox was.
		if what == model.EventDeleted && containerID == s.ID() && ev.index.HasSandboxOf(e.Sandbox.Config.Metadata.UID) {
			e.Sandbox = nil
		}
		for _, c := range ev.index.ContainersOf(s.ID()) {
			if st := c.Status(); st != nil {
				e.Containers = append(e.Containers, st)
			}
		}
		return e
	})
}
