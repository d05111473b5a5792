package supervisor

import (
	"slices"
	"testing"
	"time"
)

func TestDelaysDoubleAndBeginAnew(t *testing.T) {
	var b Backoff
	now := time.Unix(1000, 0)
	var got []time.Duration
	for range 8 {
		wait := b.Next(now)
		got = append(got, wait/time.Second)
		now = now.Add(wait + time.Second)
	}
	if want := []time.Duration{0, 10, 20, 40, 80, 160, 300, 300}; !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
	if wait := b.Next(now.Add(9 * time.Minute)); wait != 5*time.Minute {
		t.Errorf("after nine minutes: %v", wait)
	}
	if wait := b.Next(now.Add(30 * time.Minute)); wait != 0 {
		t.Errorf("after a long run: %v", wait)
	}
}
