package disk

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAFlushThatFailsIsTriedAgain: nothing else is written that would ask for another.
func TestAFlushThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failure := errors.New("input/output error")
		var tries, failures atomic.Int32
		slow := make(chan struct{}, 1)
		slow <- struct{}{}
		var mended atomic.Bool
		f := NewFlusher(func() error {
			tries.Add(1)
			if !mended.Load() {
				return failure
			}
			<-slow
			return nil
		}, func(error) { failures.Add(1) }, time.Minute)
		ended := make(chan struct{})
		go func() { f.Run(ctx); close(ended) }()
		synctest.Wait()
		if since, _, err := f.State(); tries.Load() != 0 || !since.IsZero() || err != nil {
			t.Errorf("nobody has asked: %d tries, since %v, %v", tries.Load(), since, err)
		}
		asked := time.Now()
		f.Want()
		time.Sleep(90 * time.Second)
		since, _, err := f.State()
		if tries.Load() != 2 || failures.Load() != 2 || !since.Equal(asked) || !errors.Is(err, failure) {
			t.Errorf("after one retry: %d tries, %d failures, since %v, %v", tries.Load(), failures.Load(), since, err)
		}
		mended.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if since, _, err := f.State(); failures.Load() != 2 || !since.IsZero() || err != nil {
			t.Errorf("after one that succeeded: %d failures, since %v, %v", failures.Load(), since, err)
		}
		asked = time.Now()
		f.Want() // the disk hangs
		time.Sleep(time.Hour)
		f.Want()
		if since, _, err := f.State(); !since.Equal(asked) || err != nil {
			t.Errorf("while one is under way: since %v, %v", since, err)
		}
		slow <- struct{}{}
		synctest.Wait()
		if since, last, _ := f.State(); !since.Equal(asked.Add(time.Hour)) || last.IsZero() {
			t.Errorf("what was written meanwhile is taken for flushed: since %v", since)
		}
		slow <- struct{}{}
		mended.Store(false)
		f.Want()
		synctest.Wait()
		cancel() // while it waits to try again
		<-ended
	})
}
