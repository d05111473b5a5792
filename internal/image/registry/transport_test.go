package registry

import (
	"net/http"
	"testing"
	"time"
)

// TestARegistrysDateIsByItsOwnClock, wherever that of the node was set. Seen to fail with the node's time in its place.
func TestARegistrysDateIsByItsOwnClock(t *testing.T) {
	now := time.Now()
	at := func(later time.Duration) string { return now.Add(later).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		name, after string
		date        time.Time // of the answer; zero: it has none
		want        time.Duration
	}{
		{"none", "", now, 0},
		{"seconds", "7", now.Add(-24 * time.Hour), 7 * time.Second},
		{"the node is a day ahead", at(-24*time.Hour + 9*time.Second), now.Add(-24 * time.Hour), 9 * time.Second},
		{"the node is a day behind", at(24*time.Hour + 9*time.Second), now.Add(24 * time.Hour), 9 * time.Second},
		{"it was over when it was said", at(0), now.Add(time.Minute), 0},
		{"no date of the answer", at(time.Minute), time.Time{}, time.Minute},
		{"neither seconds nor a date", "soon", now, 0},
	} {
		header := http.Header{"Retry-After": {c.after}}
		if !c.date.IsZero() {
			header.Set("Date", c.date.UTC().Format(http.TimeFormat))
		}
		if got := retryAfter(header, now); (got - c.want).Abs() > 2*time.Second {
			t.Errorf("%s: %v, and should be %v", c.name, got, c.want)
		}
	}
}
