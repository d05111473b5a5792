package containerd

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/model"
)

// TestAPodsCgroupFollowsTheContainerThatStandsForIt: it is made for one that runs, and anew when that has ended.
func TestAPodsCgroupFollowsTheContainerThatStandsForIt(t *testing.T) {
	f := newFake()
	g := newSandboxCgroups(f, slog.New(slog.DiscardHandler))
	ctx := t.Context()
	main := *f.containers["main"]
	run := func(id string, pid, day int) {
		c := main
		c.ID, c.PID, c.StartedAt = id, pid, began.AddDate(0, 0, day)
		f.containers[id] = &c
	}
	for _, step := range []struct {
		what   string
		change func()
		want   string // acts
		pid    int
	}{
		{"a container runs", func() {}, "renew sandbox", 100},
		{"nothing has changed", func() {}, "", 100},
		{"another one starts", func() { run("second", 200, 1) }, "", 100},
		{"a third one starts, after the clock was set back", func() { run("third", 300, -1) }, "", 100},
		{"the first one ends", func() { delete(f.containers, "main") }, "renew sandbox", 300},
		{"no container runs", func() { delete(f.containers, "second"); delete(f.containers, "third") }, "remove sandbox", 0},
		{"still none runs", func() {}, "", 0},
	} {
		step.change()
		f.acts = nil
		g.look(ctx, "sandbox")
		if got := strings.Join(f.acts, ", "); got != step.want {
			t.Errorf("%s: %q, not %q", step.what, got, step.want)
		}
		if pid := g.pid(ctx, f.sandboxes["sandbox"]); pid != step.pid {
			t.Errorf("%s: PID %d, not %d", step.what, pid, step.pid)
		}
	}
	// A pod with an init process has a cgroup with that in it.
	f.sandboxes["sandbox"].PID = 50
	f.acts = nil
	g.look(ctx, "sandbox")
	g.look(ctx, "over")
	g.look(ctx, "none")
	if pid := g.pid(ctx, f.sandboxes["sandbox"]); len(f.acts) > 0 || pid != 50 {
		t.Errorf("%v, PID %d", f.acts, pid)
	}
}

// TestPodsAreFollowedFromTheirListOn, and a follower that was cut off lists them again.
func TestPodsAreFollowedFromTheirListOn(t *testing.T) {
	f := newFake()
	g := newSandboxCgroups(f, slog.New(slog.DiscardHandler))
	g.delay = 0
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); g.follow(ctx) }()
	acts := func(want ...string) {
		t.Helper()
		for ctx.Err() == nil {
			f.mu.Lock()
			got := slices.Clone(f.acts)
			f.mu.Unlock()
			if slices.Equal(got, want) {
				return
			}
			if len(got) > len(want) {
				t.Fatalf("%v, not %v", got, want)
			}
			time.Sleep(time.Millisecond)
		}
	}
	acts("renew sandbox")
	f.mu.Lock()
	f.containers = map[string]*model.ContainerStatus{}
	f.mu.Unlock()
	f.events <- model.ContainerEvent{SandboxID: "sandbox"}
	acts("renew sandbox", "remove sandbox")
	stop()
	<-ended
}

// TestAnEndOfEventsIsNoReasonToHurry: when berthd ends, its events end before what follows them.
func TestAnEndOfEventsIsNoReasonToHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		close(f.events)
		ctx, stop := context.WithTimeout(t.Context(), 10*settleTime+settleTime/2)
		defer stop()
		turns, before := 0, context.Context(nil)
		f.subscribed = func(turn context.Context) {
			if before != nil && before.Err() == nil {
				t.Errorf("subscription %d begins before the last one has ended", turns)
			}
			if turns, before = turns+1, turn; turns > 100 {
				stop()
			}
		}
		newSandboxCgroups(f, slog.New(slog.DiscardHandler)).follow(ctx)
		if turns != 11 {
			t.Errorf("there were %d subscriptions in 10.5 s, not one each second", turns)
		}
	})
}
