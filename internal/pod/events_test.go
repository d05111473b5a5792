package pod

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"berth/internal/model"
)

func TestSubscribersGetEachEventOnceInOneOrder(t *testing.T) {
	const subscribers, publishers, each = 4, 8, 100
	var h hub
	h.init()
	var channels []chan model.ContainerEvent
	for range subscribers {
		channels = append(channels, h.subscribe())
	}
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for i := range each {
				h.publish(func() model.ContainerEvent {
					return model.ContainerEvent{ContainerID: fmt.Sprintf("%d-%d", p, i), At: time.Now()}
				})
			}
		})
	}
	wg.Wait()
	h.close()
	var order []string
	for n, ch := range channels {
		var got []string
		var last time.Time
		for e := range ch {
			if e.At.Before(last) {
				t.Fatalf("%s, of %v, comes after one of %v", e.ContainerID, e.At, last)
			}
			last = e.At
			got = append(got, e.ContainerID)
		}
		if len(got) != publishers*each {
			t.Fatalf("subscriber %d got %d events", n, len(got))
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
				t.Fatalf("subscribers see different orders: %s and %s at %d", order[i], got[i], i)
			}
		}
	}
}

func TestWhoIsTooSlowGetsAllUpToTheCutAndDelaysNobody(t *testing.T) {
	var h hub
	h.init()
	slow, quick := h.subscribe(), h.subscribe()
	for i := range eventBacklog + 10 {
		h.publish(func() model.ContainerEvent { return model.ContainerEvent{ContainerID: fmt.Sprint(i)} })
		if e := <-quick; e.ContainerID != fmt.Sprint(i) {
			t.Fatalf("got %s, want %d", e.ContainerID, i)
		}
	}
	i := 0
	for e := range slow { // it is closed: the reader learns that it was cut off
		if e.ContainerID != fmt.Sprint(i) {
			t.Fatalf("got %s, want %d", e.ContainerID, i)
		}
		i++
	}
	if i != eventBacklog {
		t.Errorf("got %d events before the cut, want %d", i, eventBacklog)
	}
	h.drop(slow) // its call ends afterwards
}

func TestNoEventIsMadeForNobody(t *testing.T) {
	var h hub
	h.init()
	ch := h.subscribe()
	h.drop(ch)
	h.publish(func() model.ContainerEvent { t.Error("it is made"); return model.ContainerEvent{} })
}
