package heap

import (
	"runtime/debug"
	"testing"
)

// percent is the GOGC of now.
func percent() int {
	p := debug.SetGCPercent(100)
	debug.SetGCPercent(p)
	return p
}

// TestAStartCollectsLessOften, and only the start. Seen to fail with a Starting that does nothing, and with one that
// does not look at GOGC.
func TestAStartCollectsLessOften(t *testing.T) {
	t.Setenv("GOGC", "")
	usual := percent()
	over := Starting()
	during := percent()
	over()
	if during != startPercent || percent() != usual {
		t.Errorf("GOGC is %d during the start and %d after it, in place of %d and %d", during, percent(), startPercent, usual)
	}
	t.Setenv("GOGC", "50")
	over = Starting()
	if p := percent(); p != usual {
		t.Errorf("GOGC is %d though an operator has set it", p)
	}
	over()
}
