package job

import (
	"testing"
	"time"

	"berth/internal/manifest"
)

// numbers takes all numbers for which a pod is to be made now.
func numbers(s *state) []int {
	var all []int
	for n, ok := s.next(); ok; n, ok = s.next() {
		all = append(all, n)
	}
	return all
}

func TestAJobRunsUntilItsCompletions(t *testing.T) {
	s := newState(&manifest.Job{Completions: 3, Parallelism: 2, BackoffLimit: 2})
	s.restarts = false
	if got := numbers(s); len(got) != 2 {
		t.Fatalf("begins with %v", got)
	}
	if wait := s.ended(0, false); wait != 10*time.Second {
		t.Errorf("waits %v after a failure", wait)
	}
	if got := numbers(s); len(got) != 1 || got[0] != 0 {
		t.Errorf("then makes %v", got) // the number that failed again, before new ones
	}
	if wait := s.ended(0, false); wait != 20*time.Second {
		t.Errorf("waits %v after the second failure", wait)
	}
	for _, n := range []int{1, 0, 2} {
		if ended, _ := s.done(); ended {
			t.Fatalf("ended before %d", n)
		}
		numbers(s)
		s.ended(n, true)
	}
	if ended, good := s.done(); !ended || !good {
		t.Error("three pods succeeded, and the job is not complete")
	}
	s.ended(0, false)
	if ended, good := s.done(); !ended || good {
		t.Error("three failures are more than the limit of two")
	}
}

func TestAJobWithoutCompletionsEndsWithItsPods(t *testing.T) {
	s := newState(&manifest.Job{Parallelism: 2, BackoffLimit: 6})
	s.restarts = false
	if got := numbers(s); len(got) != 2 {
		t.Fatalf("begins with %v", got)
	}
	s.ended(0, false)
	s.ended(1, true)
	if got := numbers(s); len(got) != 0 {
		t.Errorf("a pod succeeded, and others are made: %v", got)
	}
	if ended, good := s.done(); !ended || !good {
		t.Error("no pod runs, one succeeded, and the job is not complete")
	}
}

func TestAJobThatRestartsContainersFailsWithItsPod(t *testing.T) {
	s := newState(&manifest.Job{Completions: 1, Parallelism: 1, BackoffLimit: 6})
	s.restarts = true
	numbers(s)
	s.ended(0, false)
	if ended, good := s.done(); !ended || good {
		t.Error("its containers were started again as often as they may be, and the job goes on")
	}
}

func TestAJobGoesOnWithPodsThatWereThere(t *testing.T) {
	s := newState(&manifest.Job{Completions: 3, Parallelism: 2, BackoffLimit: 2, Indexed: true})
	for _, number := range []int{1, 0} {
		if taken, ok := s.resume(number); !ok || taken != number {
			t.Errorf("pod %d is taken for %d, %v", number, taken, ok)
		}
	}
	s.ended(1, true)
	if _, ok := s.resume(1); ok {
		t.Error("a number is taken twice")
	}
	if got := numbers(s); len(got) != 1 || got[0] != 2 {
		t.Errorf("then makes %v", got) // 0 runs, and 1 has succeeded
	}
	plain := newState(&manifest.Job{Completions: 1, Parallelism: 1})
	if _, ok := plain.resume(0); !ok {
		t.Error("a pod is not taken")
	}
	if _, ok := plain.resume(0); ok {
		t.Error("more pods are taken than there are completions")
	}
}
