package prepared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// memory is a Maker, and a node that has pods or has none.
type memory struct {
	mu    sync.Mutex
	sets  map[string]bool
	count int
	fails bool
	inUse atomic.Bool
	log   strings.Builder
}

func (m *memory) Prepare(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails {
		return errors.New("no address is left")
	}
	m.sets[id] = true
	return nil
}

func (m *memory) DropPrepared(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sets, id)
	return nil
}

func (m *memory) have() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.sets)
}

// run calls f in a bubble of time beside a Pool of two sets.
func run(t *testing.T, f func(t *testing.T, p *Pool, m *memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &memory{sets: map[string]bool{}}
		p := New(Config{Size: 2, Maker: m, InUse: m.inUse.Load, Log: slog.New(slog.NewTextHandler(&m.log, nil)),
			NewID: func() string { m.count++; return fmt.Sprint("id", m.count) }})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { p.Run(ctx) })
		m.inUse.Store(true)
		f(t, p, m)
		stop()
		running.Wait()
		if n := m.have(); n != 0 {
			t.Errorf("%d sets are left after the end", n)
		}
	})
}

// start is a pod's start: a call that takes a set, and one that completes the pod.
func start(p *Pool) (id string, ok bool) {
	done := p.Busy(PodStep)
	id, ok = p.Take()
	done()
	p.Busy(LastPodStep)()
	time.Sleep(2 * completeTime)
	return id, ok
}

func TestSetsAreMadeWhenAPodIsComplete(t *testing.T) {
	run(t, func(t *testing.T, p *Pool, m *memory) {
		p.Busy(LastPodStep)()
		time.Sleep(time.Minute)
		if m.have() != 0 {
			t.Error("sets were made that nobody has asked for")
		}
		if id, ok := start(p); ok {
			t.Errorf("a set %s that nobody has made", id)
		}
		if m.have() != 2 {
			t.Errorf("%d sets after a pod, want 2", m.have())
		}
		for _, want := range []string{"id1", "id2"} {
			done := p.Busy(PodStep)
			if id, ok := p.Take(); id != want || !ok {
				t.Errorf("got %q, %v, want %s", id, ok, want)
			}
			defer done()
		}
		if _, ok := p.Take(); ok {
			t.Error("a third of two")
		}
		for id := range m.sets { // they are their pods' now
			delete(m.sets, id)
		}
	})
}

func TestNoSetIsMadeWhilePodsStart(t *testing.T) {
	run(t, func(t *testing.T, p *Pool, m *memory) {
		p.Take()
		done := p.Busy(PodStep)
		p.Busy(LastPodStep)()
		time.Sleep(maxBusy * 3 / 4)
		if m.have() != 0 {
			t.Error("a set was made beside a call")
		}
		done()
		time.Sleep(quietTime / 2)
		p.Busy(PodStep)()
		time.Sleep(quietTime * 3 / 4)
		if m.have() != 0 {
			t.Error("a set was made right after a call")
		}
		time.Sleep(quietTime)
		if m.have() != 2 {
			t.Errorf("%d sets after some quiet, want 2", m.have())
		}
	})
}

// TestACallThatHangsPutsNoSetOffForLong: it waits, and does not need the processor. Seen to fail where a call counted
// until its end.
func TestACallThatHangsPutsNoSetOffForLong(t *testing.T) {
	for name, work := range map[string]Work{"an exec": Exec, "a step": PodStep, "a last step": LastPodStep} {
		run(t, func(t *testing.T, p *Pool, m *memory) {
			done := p.Busy(work)
			time.Sleep(maxBusy / 4)
			start(p)
			time.Sleep(maxBusy / 2)
			if m.have() != 0 {
				t.Errorf("%s: %d sets beside a call that works", name, m.have())
			}
			time.Sleep(maxBusy / 2)
			if m.have() != 2 {
				t.Errorf("%s: %d sets beside a call that hangs, want 2", name, m.have())
			}
			for range 3 { // other pods start, and get the sets
				id, ok := start(p)
				if !ok {
					t.Errorf("%s: a pod has no set", name)
				}
				p.Drop(t.Context(), id)
			}
			done()
		})
	}
}

// TestExecsDoNotPutASetOffForEver: it is made between two of them.
func TestExecsDoNotPutASetOffForEver(t *testing.T) {
	run(t, func(t *testing.T, p *Pool, m *memory) {
		p.Take()
		p.Busy(PodStep)()
		for range 100 {
			done := p.Busy(Exec)
			time.Sleep(quietTime / 20)
			done()
			time.Sleep(quietTime / 20)
		}
		if m.have() != 2 {
			t.Errorf("%d sets beside execs, want 2", m.have())
		}
		p.Take()
		done := p.Busy(Exec)
		p.Busy(LastPodStep)()
		time.Sleep(2 * completeTime)
		if m.have() != 2 {
			t.Error("a set was made while an exec was set up")
		}
		done()
		time.Sleep(2 * completeTime)
		if m.have() != 3 { // one is its pod's
			t.Error("no set was made after the exec")
		}
		delete(m.sets, "id1")
	})
}

func TestSetsGoWithTheLastPod(t *testing.T) {
	run(t, func(t *testing.T, p *Pool, m *memory) {
		start(p)
		m.inUse.Store(false)
		p.Gone()
		time.Sleep(linger / 2)
		if m.have() != 2 {
			t.Error("they go at once, and the next pod is without")
		}
		time.Sleep(linger)
		if m.have() != 0 {
			t.Errorf("%d sets are left", m.have())
		}
		m.inUse.Store(true)
		if _, ok := start(p); ok {
			t.Error("a set was taken that is gone")
		}
		if m.have() != 2 {
			t.Error("they do not come back with the next pod")
		}
	})
}

func TestOldSetsAreReplaced(t *testing.T) {
	run(t, func(t *testing.T, p *Pool, m *memory) {
		start(p)
		time.Sleep(2 * maxAge)
		if id, ok := p.Take(); !ok || id == "id1" || id == "id2" {
			t.Errorf("after %s there is %q, %v", 2*maxAge, id, ok)
		} else {
			p.Drop(t.Context(), id)
		}
	})
}

func TestAFailureIsToldOnceAndTriedAgain(t *testing.T) {
	run(t, func(t *testing.T, p *Pool, m *memory) {
		m.fails = true
		for range 3 {
			start(p)
		}
		if n := strings.Count(m.log.String(), "no address is left"); n != 1 {
			t.Errorf("it was told %d times: %s", n, m.log.String())
		}
		m.fails = false
		if start(p); m.have() != 2 {
			t.Errorf("%d sets afterwards, want 2", m.have())
		}
	})
}

func TestAPoolOfNoneMakesNone(t *testing.T) {
	p := New(Config{})
	p.Run(t.Context())
	p.Busy(LastPodStep)()
	if id, ok := p.Take(); ok {
		t.Errorf("it has %s", id)
	}
}
