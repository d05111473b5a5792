package main

import "testing"

// TestFlagsChangeTheSmallerChoice gives one flag, whose value stays.
func TestFlagsChangeTheSmallerChoice(t *testing.T) {
	s := settings{Procs: 6, Labels: usual, Focus: "Swap"}
	s.choose(smaller, map[string]bool{"procs": true, "focus": true})
	want := settings{Procs: 6, Labels: smaller.Labels, Skip: smaller.Skip, Focus: "Swap"}
	if s != want {
		t.Errorf("the settings are %+v, not %+v", s, want)
	}
}
