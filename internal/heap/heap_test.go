package heap

import "testing"

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
		if due := w.due(step.allocated); due != step.due {
			t.Errorf("step %d, with %d bytes: %t", i, step.allocated, due)
		}
	}
}
