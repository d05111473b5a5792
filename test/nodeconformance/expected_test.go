package main

import "testing"

// TestAnExpectationIsForItsRuntimeAndMachine has one that is about another runtime, and one that is about what the
// machine has.
func TestAnExpectationIsForItsRuntimeAndMachine(t *testing.T) {
	was := expectedFailures
	defer func() { expectedFailures = was }()
	expectedFailures = []expectedFailure{
		{spec: "cannot work"}, {spec: "fails there", runtime: "containerd"}, {spec: "needs wings", lacks: "wings"},
	}
	for _, c := range []struct {
		runtime string
		lacking []string
		here    []bool
	}{
		{"berth", nil, []bool{true, false, false}},
		{"berth", []string{"wings"}, []bool{true, false, true}},
		{"containerd", nil, []bool{true, true, false}},
	} {
		for i, e := range expectations(c.runtime, c.lacking) {
			if e.Elsewhere == c.here[i] {
				t.Errorf("%s, lacking %q: elsewhere is %t of %q", c.runtime, c.lacking, e.Elsewhere, e.Spec)
			}
		}
	}
}
