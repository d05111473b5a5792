package heap

import (
	"slices"
	"testing"
)

// TestMemoryIsReturnedOnceAfterABurst: not while the program works, not again while it rests, and not for little. It
// was seen to fail without either condition, and without the note of what has been returned.
func TestMemoryIsReturnedOnceAfterABurst(t *testing.T) {
	const mib = 1 << 20
	var w watch
	for i, step := range []struct {
		allocated uint64
		due       bool
	}{
		{3 * mib, false},      // a start
		{3*mib + 100, false},  // at rest, but it is not worth it
		{30 * mib, false},     // a burst
		{60 * mib, false},     // that goes on
		{60*mib + 1000, true}, // and is over
		{60*mib + 2000, false},
		{62 * mib, false},
		{64*mib + 500_000, false}, // calls all the time
		{66*mib + 500_000, false},
		{66*mib + 600_000, true},
	} {
		if due := w.due(step.allocated, 6*mib); due != step.due {
			t.Errorf("step %d, with %d bytes: %t", i, step.allocated, due)
		}
	}
}

// TestALargeHeapRestsWhileMoreIsAllocated, as that of berthd with a thousand pods, which it looks at every ten seconds.
// Seen to fail where rest and worth are the same for all heaps.
func TestALargeHeapRestsWhileMoreIsAllocated(t *testing.T) {
	const mib = 1 << 20
	w, allocated := watch{}, uint64(100*mib)
	var times []int
	for i := range 30 {
		if w.due(allocated, 40*mib) {
			times = append(times, i)
		}
		allocated += 4 * mib
	}
	if !slices.Equal(times, []int{1, 6, 11, 16, 21, 26}) {
		t.Errorf("memory was returned in the pauses %v", times)
	}
	if w.due(allocated+6*mib, 40*mib) {
		t.Error("memory was returned while the program worked")
	}
}
