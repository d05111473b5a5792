// Package health runs berthd's checks of itself, and notifies systemd's watchdog as long as they pass.
package health

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/internal/liblog"
)

// Check is an operation that a healthy daemon completes within a short time.
type Check struct {
	Name string
	// Run may continue after the end of the context, while a disk does not answer.
	Run func(context.Context) error
}

// Result is the result of a check.
type Result struct {
	Check string
	Err   error // nil: it passed
}

// Checker runs checks, each of them once at a time: a check that hangs has one goroutine, however often it is wanted.
type Checker struct{ checks []*single }

// New makes a Checker.
func New(checks ...Check) *Checker {
	c := &Checker{}
	for _, one := range checks {
		c.checks = append(c.checks, &single{Check: one})
	}
	return c
}

// Run runs all checks at once, and waits for each of them until limit has passed. If an earlier run of a check still
// hangs, Run waits for that one first and then runs the check again, so that a result is never an old one. The results
// are in the order of the checks.
func (c *Checker) Run(ctx context.Context, limit time.Duration) []Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	results := make([]Result, len(c.checks))
	var wait sync.WaitGroup
	for i, one := range c.checks {
		wait.Go(func() { results[i] = Result{one.Name, one.run(ctx, limit)} })
	}
	wait.Wait()
	return results
}

// single is a check of which at most one run is under way.
type single struct {
	Check
	mu      sync.Mutex
	current *run // the run that is under way; nil: none is
}

type run struct {
	begun time.Time
	done  chan struct{}
	err   error // once done is closed
}

func (s *single) run(ctx context.Context, limit time.Duration) error {
	for {
		s.mu.Lock()
		r, mine := s.current, false
		if r == nil {
			r, mine = &run{begun: time.Now(), done: make(chan struct{})}, true
			s.current = r
			go s.do(ctx, r)
		}
		s.mu.Unlock()
		select {
		case <-r.done:
			if mine {
				return r.err
			}
		case <-ctx.Done():
			return fmt.Errorf("there is no answer after %s, of which %s were waited for",
				time.Since(r.begun).Round(time.Millisecond), limit)
		}
	}
}

func (s *single) do(ctx context.Context, r *run) {
	r.err = s.Run(ctx)
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
	close(r.done)
}

// Failed returns the results of checks that did not pass.
func Failed(results []Result) []Result {
	return slices.DeleteFunc(slices.Clone(results), func(r Result) bool { return r.Err == nil })
}

// Watch runs the checks every period until ctx ends, and calls alive each time that all have passed. A period bounds
// the checks too. The log says when they begin to fail, which of them do, and when they pass again.
func (c *Checker) Watch(ctx context.Context, period time.Duration, alive func(), log *slog.Logger) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	var since time.Time // of the failure; zero: they pass
	for names := ""; ; {
		failed := Failed(c.Run(ctx, period))
		if ctx.Err() != nil {
			return
		}
		var now []string
		for _, r := range failed {
			now = append(now, r.Check)
		}
		was := names
		names = strings.Join(now, ", ")
		switch {
		case len(failed) > 0:
			if since.IsZero() {
				since = time.Now()
			}
			if names != was {
				for _, r := range failed {
					const event = "a health check of berthd fails: systemd's watchdog ends berthd if that lasts"
					log.Error(event, "check", r.Check, "error", r.Err)
				}
			}
		default:
			if !since.IsZero() {
				log.Info("the health checks of berthd pass again", "took_ms", liblog.Milliseconds(time.Since(since)))
				since = time.Time{}
			}
			alive()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
