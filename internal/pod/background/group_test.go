package background

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestCloseWaitsForWork(t *testing.T) {
	var g Group
	var ended atomic.Bool
	begin := make(chan struct{})
	g.Go(func() {
		<-begin
		ended.Store(true)
	})
	close(begin)
	g.Close()
	if !ended.Load() {
		t.Error("Close has returned before the work")
	}
	g.Go(func() { t.Error("work has begun after Close") })
	g.Close()
}

// TestWorkThatComesWhileTheGroupIsClosed neither panics nor outlives Close. Without the check of closed it panics.
func TestWorkThatComesWhileTheGroupIsClosed(t *testing.T) {
	for range 200 {
		var g Group
		var callers sync.WaitGroup
		var running atomic.Int32
		var closed atomic.Bool
		for range 4 {
			callers.Go(func() {
				for !closed.Load() {
					g.Go(func() {
						running.Add(1)
						runtime.Gosched()
						running.Add(-1)
					})
					runtime.Gosched()
				}
			})
		}
		g.Close()
		if n := running.Load(); n != 0 {
			t.Errorf("%d goroutines run after Close", n)
		}
		closed.Store(true)
		callers.Wait()
	}
}
