package liblog

import (
	"testing"
	"time"
)

func TestADurationIsANumberOfMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]float64{0: 0, 1234567: 1.234, 2 * time.Second: 2000, -time.Millisecond: -1} {
		if got := Milliseconds(d); got != want {
			t.Errorf("%v: %v, want %v", d, got, want)
		}
	}
}
