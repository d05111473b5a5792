package eventfeed

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

type event struct {
	id string
	at time.Time
}

func TestFollowersGetEachEventOnceInOneOrder(t *testing.T) {
	const followers, publishers, each = 4, 8, 100
	var f Feed[event]
	var channels []chan event
	for range followers {
		ch, _ := f.add()
		channels = append(channels, ch)
	}
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for i := range each {
				f.Publish(func() event {
					return event{id: fmt.Sprintf("%d-%d", p, i), at: time.Now()}
				})
			}
		})
	}
	wg.Wait()
	f.Close()
	var order []string
	for n, ch := range channels {
		var got []string
		var last time.Time
		for e := range ch {
			if e.at.Before(last) {
				t.Fatalf("%s, of %v, comes after one of %v", e.id, e.at, last)
			}
			last = e.at
			got = append(got, e.id)
		}
		if len(got) != publishers*each {
			t.Fatalf("follower %d got %d events", n, len(got))
		}
		if n == 0 {
			order = got
			seen := map[string]bool{}
			for _, id := range got {
				if seen[id] {
					t.Errorf("%s comes twice", id)
				}
				seen[id] = true
			}
			continue
		}
		for i := range got {
			if got[i] != order[i] {
				t.Fatalf("followers see different orders: %s and %s at %d", order[i], got[i], i)
			}
		}
	}
}

func TestWhoIsTooSlowGetsAllUpToTheCutAndDelaysNobody(t *testing.T) {
	var f Feed[event]
	slow, _ := f.add()
	quick, _ := f.add()
	for i := range Backlog + 10 {
		f.Publish(func() event { return event{id: fmt.Sprint(i)} })
		if e := <-quick; e.id != fmt.Sprint(i) {
			t.Fatalf("got %s, want %d", e.id, i)
		}
	}
	i := 0
	for e := range slow { // it is closed: the reader learns that it was cut off
		if e.id != fmt.Sprint(i) {
			t.Fatalf("got %s, want %d", e.id, i)
		}
		i++
	}
	if i != Backlog {
		t.Errorf("got %d events before the cut, want %d", i, Backlog)
	}
	f.drop(slow) // its call ends afterwards
}

// TestWhoFollowsAClosedFeedCostsNothing: a context may live long, and a follower that comes back is one more each time.
func TestWhoFollowsAClosedFeedCostsNothing(t *testing.T) {
	var f Feed[event]
	f.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if ch := f.Follow(ctx); cap(ch) > 0 {
		t.Errorf("it has a buffer of %d events", cap(ch))
	} else if _, open := <-ch; open {
		t.Error("there is an event")
	}
	// One allocation is the channel. A function that waits for the end of ctx has more.
	if n := testing.AllocsPerRun(100, func() { f.Follow(ctx) }); n > 1 {
		t.Errorf("each has %v allocations", n)
	}
}

func TestNoEventIsMadeForNobody(t *testing.T) {
	var f Feed[event]
	ch, _ := f.add()
	f.drop(ch)
	f.Publish(func() event { t.Error("it is made"); return event{} })
}
