package gate

import (
	"testing"
	"time"
)

// TestWhatBeginsWhileSomebodyWaits: an upgrade that waits for the calls under way and gives up leaves nobody behind
// whom the next call disturbs. With a sync.WaitGroup the waiter that was left behind, and a call that begins as the
// last one ends, were a misuse of it ("WaitGroup is reused before previous Wait has returned"), which ends the keeper.
func TestWhatBeginsWhileSomebodyWaits(t *testing.T) {
	g := New()
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 20_000 {
				if g.Begin() == nil {
					g.End()
				}
			}
		}()
	}
	for left := 4; left > 0; {
		g.Close()
		go g.Wait() // nobody waits for this one
		g.Open()
		select {
		case <-done:
			left--
		case <-time.After(time.Microsecond):
		}
	}
}

func TestIdle(t *testing.T) {
	var tasks Tasks
	idle := func() bool {
		select {
		case <-tasks.Idle():
			return true
		default:
			return false
		}
	}
	if !idle() {
		t.Error("nothing has begun, and it is not idle")
	}
	tasks.Begin()
	early := tasks.Idle()
	over := make(chan struct{})
	tasks.Go(func() { <-over })
	tasks.End()
	if idle() {
		t.Error("it is idle, and a task is under way")
	}
	close(over)
	tasks.Wait()
	<-early
	if !idle() {
		t.Error("all has ended, and it is not idle")
	}
}

// TestAGateThatIsClosed lets nothing begin, but what belongs to something that has begun.
func TestAGateThatIsClosed(t *testing.T) {
	g := New()
	if err := g.Begin(); err != nil {
		t.Fatal(err)
	}
	if !g.Close() || g.Close() {
		t.Error("it was closed twice, or not at all")
	}
	<-g.Stopped()
	if err := g.Begin(); err != ErrUpgrading {
		t.Errorf("a call begins: %v", err)
	}
	g.Again()
	g.End()
	select {
	case <-g.Idle():
		t.Error("it is idle, and a call is under way")
	default:
	}
	g.End()
	g.Wait()
	g.Open()
	if err := g.Begin(); err != nil {
		t.Error(err)
	}
}
