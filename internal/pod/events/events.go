// Package events sends the events of pods and containers to subscribers, as a kubelet with evented PLEG expects them.
package events

import (
	"time"

	"berth/internal/eventfeed"
	"berth/internal/model"
	"berth/internal/pod/index"
)

// Feed tells subscribers what happens to the pods of an index. Its methods may be called concurrently.
type Feed struct {
	eventfeed.Feed[model.ContainerEvent]
	index *index.Index
}

// New is a feed that nobody follows.
func New(x *index.Index) *Feed { return &Feed{index: x} }

// Tell publishes an event with the state of the whole pod, as evented kubelets want it. containerID is the sandbox's
// own ID for an event of the sandbox.
func (ev *Feed) Tell(s *index.Sandbox, containerID string, what model.ContainerEventType) {
	ev.Publish(func() model.ContainerEvent {
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
			if st := c.Status(); st != nil && !st.Making { // no client is told of it before it is made
				e.Containers = append(e.Containers, st)
			}
		}
		return e
	})
}
