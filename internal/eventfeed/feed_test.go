package eventfeed

import (
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
		channels = append(channels, f.add())
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
	slow, quick := f.add(), f.add()
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

func TestNoEventIsMadeForNobody(t *testing.T) {
	var f Feed[event]
	ch := f.add()
	f.drop(ch)
	f.Publish(func() event { t.Error("it is made"); return event{} })
}
