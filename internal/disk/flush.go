package disk

import (
	"context"
	"sync"
	"time"
)

// Flusher flushes what was written to a disk, some time after it was asked to. A flush that has failed is tried again:
// what was written last may be all that is written for weeks, and a reboot come before that.
type Flusher struct {
	flush  func() error
	failed func(error) // told of each failure
	retry  time.Duration
	wanted chan struct{}

	mu       sync.Mutex
	since    time.Time // when the first flush was wanted that is not over
	next     time.Time // when one was wanted first while one is under way, which may not cover it
	underWay bool
	failure  error
	last     time.Time // the end of the last flush that has not failed
}

// NewFlusher makes a flusher that waits for retry after a failure. Run makes it work.
func NewFlusher(flush func() error, failed func(error), retry time.Duration) *Flusher {
	return &Flusher{flush: flush, failed: failed, retry: retry, wanted: make(chan struct{}, 1)}
}

// Want asks for a flush soon, and does not wait for it.
func (f *Flusher) Want() {
	f.mu.Lock()
	first := &f.since
	if f.underWay {
		first = &f.next
	}
	if first.IsZero() {
		*first = time.Now()
	}
	f.mu.Unlock()
	select {
	case f.wanted <- struct{}{}:
	default:
	}
}

// Run flushes whenever that is wanted, until ctx ends.
func (f *Flusher) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wanted:
		}
		for !f.try() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(f.retry):
			}
		}
	}
}

func (f *Flusher) try() (ok bool) {
	f.mu.Lock()
	f.underWay, f.next = true, time.Time{}
	f.mu.Unlock()
	err := f.flush()
	f.mu.Lock()
	if f.underWay, f.failure = false, err; err == nil {
		f.since, f.last = f.next, time.Now()
	}
	f.mu.Unlock()
	if err != nil {
		f.failed(err)
	}
	return err == nil
}

// State says since when a flush has been wanted that is not over, or has failed (zero: none has), when the last one
// ended that did not fail (zero: none has), and the failure of the last one.
func (f *Flusher) State() (since, last time.Time, failure error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.since, f.last, f.failure
}
