package image

import (
	"context"
	"slices"
	"time"

	"berth/internal/model"
)

// Subscribe follows the names under which images are listed until ctx ends; the channel is closed then, and also when
// the subscriber is too far behind, or the store is closed. Whoever lists images after the call and applies the events
// to the list misses nothing.
func (s *Store) Subscribe(ctx context.Context) <-chan model.ImageEvent {
	return s.index.events.Follow(ctx)
}

// listed are the names of an image: its tags, its digests and its ID. r may be nil, and an image that a client has
// removed is listed under no name.
func (r *imageRecord) listed() []string {
	if r == nil || r.Removed {
		return nil
	}
	return append(slices.Concat(r.Tags, r.Digests), r.ID)
}

// holder is the image that is listed under a name; nil: there is none. mu is held.
func (x *index) holder(name string) *imageRecord {
	r := x.images[name] // the name is an ID
	if r == nil {
		r = x.images[x.names[name]]
	}
	if r == nil || r.Removed {
		return nil
	}
	return r
}

// announce makes a change of the tables, and publishes an event for each of these names to which it makes a difference.
// A tag that moves from one image to another is one change, although two records change. mu is held, so that a
// subscriber that asks for an image after an event finds what the event tells of.
func (x *index) announce(names []string, change func()) {
	before := map[string]*imageRecord{}
	for _, name := range names {
		before[name] = x.holder(name)
	}
	change()
	told := map[string]bool{}
	for _, name := range names {
		was, is := before[name], x.holder(name)
		var what model.ImageEventType
		switch {
		case told[name] || was == nil && is == nil:
			continue
		case was == nil:
			what = model.ImageCreated
		case is == nil:
			what = model.ImageDeleted
		case was.ID != is.ID || was.Pinned != is.Pinned:
			what = model.ImageUpdated
		default:
			continue
		}
		told[name] = true
		x.events.Publish(func() model.ImageEvent {
			e := model.ImageEvent{Type: what, Name: name, At: time.Now()}
			if is != nil {
				e.ImageID = is.ID
			}
			return e
		})
	}
}
