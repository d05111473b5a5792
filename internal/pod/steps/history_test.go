package steps

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"berth/internal/codec"
)

// TestAHistoryIsTheJSONOfItsTimings, as earlier versions write and read it. Seen to fail with a With that does not end
// the list, and with one that writes into the list that it continues.
func TestAHistoryIsTheJSONOfItsTimings(t *testing.T) {
	begin := time.Date(2026, 11, 28, 12, 0, 0, 5000, time.UTC)
	first := []Timing{{Step: "mount", Begin: begin, Took: 7}, {Step: "start", Took: time.Second}}
	second := []Timing{{Step: "program", Of: "start", Begin: begin, Took: 1}}
	third := []Timing{{Step: "other", Took: 2}}
	h := NewHistory(first)
	both, other := h.With(second), h.With(third)
	for _, c := range []struct {
		h    History
		want []Timing
	}{
		{nil, nil}, {h, first}, {both, slices.Concat(first, second)}, {other, slices.Concat(first, third)},
		{h.With(nil), first},
	} {
		type record struct {
			Timings []Timing `json:"timings,omitempty"`
		}
		type held struct {
			Timings History `json:"timings,omitempty"`
		}
		want, err := json.Marshal(record{c.want})
		if err != nil {
			t.Fatal(err)
		}
		for name, marshal := range map[string]func(any) ([]byte, error){"json": json.Marshal, "codec": codec.Marshal} {
			if got, err := marshal(held{c.h}); err != nil || string(got) != string(want) {
				t.Errorf("%s: %s, %v, in place of %s", name, got, err, want)
			}
		}
		for name, unmarshal := range map[string]func([]byte, any) error{"json": json.Unmarshal, "codec": codec.Unmarshal} {
			var got held
			if err := unmarshal(want, &got); err != nil || string(got.Timings) != string(c.h) {
				t.Errorf("%s of %s: %s, %v", name, want, got.Timings, err)
			}
		}
	}
	for text, fails := range map[string]bool{
		"null": false, "[]": false, "[ ]": false, "{}": true, "1": true, `"["`: true,
	} {
		var got History
		if err := codec.Unmarshal([]byte(text), &got); (err != nil) != fails || len(got) > 0 {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}
