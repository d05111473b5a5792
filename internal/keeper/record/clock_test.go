package record

import (
	"encoding/json"
	"testing"
	"time"
)

// TestAnExecEndsByAClockThatNobodySets: the record of an exec, as the next keeper reads it, where the wall clock was
// set forth or back by a day meanwhile, and where a keeper from before wrote only that clock's time. Seen to fail with
// the wall clock's time alone.
func TestAnExecEndsByAClockThatNobodySets(t *testing.T) {
	const timeout = time.Hour
	for name, c := range map[string]struct {
		record  Exec
		limited bool
	}{
		"set forth": {record: Exec{Ends: Monotonic() + timeout, Deadline: time.Now().Add(timeout - 24*time.Hour)},
			limited: true},
		"set back": {record: Exec{Ends: Monotonic() + timeout, Deadline: time.Now().Add(timeout + 24*time.Hour)},
			limited: true},
		"of a keeper before": {record: Exec{Deadline: time.Now().Add(timeout)}, limited: true},
		"without an end":     {},
	} {
		var r Exec
		if err := json.Unmarshal(JSON(&c.record), &r); err != nil {
			t.Fatal(err)
		}
		left, limited := r.Left()
		if limited != c.limited || limited && (left > timeout || left < timeout-time.Minute) {
			t.Errorf("%s: %v is left, %v", name, left, limited)
		}
	}
}
