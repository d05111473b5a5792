package pods

import (
	"testing"
	"time"
)

func TestSinceIsATimeOrASpan(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "10m": now.Add(-10 * time.Minute), "2026-01-31T11:00:00Z": now.Add(-time.Hour),
		"1769853600": time.Unix(1769853600, 0),
	} {
		if got, err := parseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
