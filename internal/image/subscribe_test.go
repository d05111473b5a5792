package image

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"berth/internal/eventfeed"
	"berth/internal/model"
)

// happened are the events that wait for a subscriber, as text.
func happened(events <-chan model.ImageEvent) (list []string) {
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return append(list, "closed")
			}
			list = append(list, fmt.Sprintf("%s %s", e.Type, e.Name))
		default:
			return list
		}
	}
}

// TestSubscribersHearOfEachName under which an image is listed, once for each change. Seen to fail without announce,
// and with a call of announce for each record: a tag that moves is then deleted and created.
func TestSubscribersHearOfEachName(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	first := f.push("a:1", files("a", "first"))
	firstDigest := host + "a@" + digestOf(t, first)
	ctx, cancel := context.WithCancel(ctx)
	events := f.Subscribe(ctx)
	check := func(what string, want ...string) {
		t.Helper()
		if got := happened(events); !slices.Equal(got, want) {
			t.Errorf("%s:\n%q, not\n%q", what, got, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	firstID := f.pull("a:1")
	check("a pull", "created "+host+"a:1", "created "+firstDigest, "created "+firstID)
	f.pull("a:1")
	check("the same pull")

	second := f.push("a:1", files("a", "second"))
	secondDigest, secondID := host+"a@"+digestOf(t, second), f.pull("a:1")
	check("a pull that moves a tag", "updated "+host+"a:1", "created "+secondDigest, "created "+secondID)
	_, err := f.Tag(ctx, firstID, host+"a:1")
	must(err)
	check("a tag that moves back", "updated "+host+"a:1")
	_, err = f.Tag(ctx, firstID, host+"b:1")
	must(err)
	check("one more tag", "created "+host+"b:1")
	must(f.Pin(ctx, secondID, true))
	check("a pin", "updated "+secondDigest, "updated "+secondID)

	must(f.Remove(ctx, secondID))
	check("a removal", "deleted "+secondDigest, "deleted "+secondID)
	_, err = f.AddReference(firstID, "container")
	must(err)
	must(f.Remove(ctx, host+"b:1"))
	gone := []string{"deleted " + host + "a:1", "deleted " + host + "b:1", "deleted " + firstDigest, "deleted " + firstID}
	check("a removal of an image in use", gone...)
	must(f.reg.Push("a:1", first))
	f.pull("a:1")
	check("an image that comes back", "created "+host+"a:1", "created "+firstDigest, "created "+firstID)
	must(f.Remove(ctx, firstID))
	happened(events)
	f.Release("container")
	must(f.dropUnneeded(t.Context()))
	check("the end of a removed image")

	closed := f.Subscribe(context.Background())
	cancel()
	for range events { // until it is closed
	}
	must(f.Close())
	if got := happened(closed); !slices.Equal(got, []string{"closed"}) {
		t.Errorf("after the end of the store: %q", got)
	}
}

// TestWhoDoesNotReadDelaysNoPull, and is cut off. Each image has two names here, so that there are twice as many events
// as may wait. Seen to fail, and to end never, with a feed that waits.
func TestWhoDoesNotReadDelaysNoPull(t *testing.T) {
	x := newIndex()
	events := x.events.Follow(t.Context())
	for i := range eventfeed.Backlog {
		x.mu.Lock()
		x.replace(&imageRecord{ID: fmt.Sprintf("sha256:%d", i), Tags: []string{fmt.Sprintf("a:%d", i)}})
		x.mu.Unlock()
	}
	n := 0
	for range events {
		n++
	}
	if n != eventfeed.Backlog || len(x.images) != eventfeed.Backlog {
		t.Errorf("%d events and %d images", n, len(x.images))
	}
}
