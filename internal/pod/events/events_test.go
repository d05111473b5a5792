package events

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
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
	h.Close()
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

// TestAPodIsNotForgottenForAnOldAttempt: a kubelet forgets the pod that a deletion names, so that none is named while
// another sandbox of it lives. Seen to fail with the sandbox named in each event.
func TestAPodIsNotForgottenForAnOldAttempt(t *testing.T) {
	x := index.New()
	table := record.NewSandboxes(t.TempDir(), func(string) string { return "" }, slog.New(slog.DiscardHandler))
	var attempts []*index.Sandbox
	for i := range uint32(2) {
		id := fmt.Sprint(i)
		meta := model.SandboxMetadata{Name: "web", UID: "1", Attempt: i}
		s := index.NewSandbox(table.New(id, record.Sandbox{ID: id, Config: &model.SandboxConfig{Metadata: meta}}))
		x.AdoptSandbox(s)
		attempts = append(attempts, s)
	}
	feed := New(x)
	ch := feed.Follow(t.Context())
	for i, named := range []bool{false, true} {
		x.ForgetSandbox(attempts[i])
		feed.Tell(attempts[i], attempts[i].ID(), model.EventDeleted)
		if e := <-ch; e.SandboxID != attempts[i].ID() || (e.Sandbox != nil) != named {
			t.Errorf("the deletion of attempt %d is told as %+v", i, e)
		}
	}
}
