package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestVerdictsComplainBothWays(t *testing.T) {
	expected := map[string]string{"b": "why", "c": "why", "gone": "why"}
	results := []result{
		{name: "a", outcome: passed}, {name: "b", outcome: failed}, {name: "c", outcome: passed},
		{name: "d", outcome: failed}, {name: "e", outcome: failed},
	}
	got := verdictOf(results, expected, map[string]string{"e": "why"}, true)
	want := []string{"passed, where a failure is listed: c", "failed: d", "listed, and not in the suite: gone"}
	if !slices.Equal(got, want) {
		t.Errorf("complaints are %q, want %q", got, want)
	}
	if got := verdictOf(results[:2], expected, nil, false); len(got) != 0 {
		t.Errorf("with a focus, what did not run is complained of: %q", got)
	}
	got = unknown(map[string]string{"a": "why", "x": "why"}, results)
	if !slices.Equal(got, []string{"listed, and not in the suite: x"}) {
		t.Errorf("what is not run, and is not in the suite: %q", got)
	}
}

func TestSubtestsAreReadWithoutTheirParents(t *testing.T) {
	out := "=== RUN   TestA\n=== RUN   TestA/one\n=== RUN   TestA/two\n    a_test.go:7: no such thing: here\n" +
		"--- FAIL: TestA (0.03s)\n    --- PASS: TestA/zero (0.01s)\n    --- FAIL: TestA/one (0.01s)\n" +
		"    --- SKIP: TestA/two (0.00s)\nFAIL\n"
	var got []string
	for _, r := range parseGoTest("TestA", out, errors.New("exit status 1")) {
		got = append(got, r.name+" "+string(r.outcome))
	}
	if want := []string{"TestA/zero passed", "TestA/one failed", "TestA/two skipped"}; !slices.Equal(got, want) {
		t.Errorf("results are %q, want %q", got, want)
	}
	skip := parseGoTest("TestB", "=== RUN   TestB\n    b_test.go:9: SELinux is off\n--- SKIP: TestB (0.00s)\nPASS\n", nil)
	if len(skip) != 1 || skip[0].outcome != skipped || skip[0].text != "SELinux is off" {
		t.Errorf("a test that is skipped is read as %+v", skip)
	}
}

func TestATestThatSaysNothingHasFailed(t *testing.T) {
	for name, out := range map[string]string{
		"it ended before its verdict":       "=== RUN   TestA\npanic: oh\n",
		"it passed, and the process failed": "=== RUN   TestA\n--- PASS: TestA (0.00s)\npanic: oh\n",
	} {
		got := parseGoTest("TestA", out, errors.New("exit status 2"))
		told := func(r result) bool { return r.outcome == failed && strings.Contains(r.text, "exit status 2") }
		if !slices.ContainsFunc(got, told) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTAPIsRead(t *testing.T) {
	out := "1..3\nok 1 a name in 12ms\nnot ok 2 another in 3ms\n# (in test file x.bats, line 7)\n" +
		"ok 3 third in 0ms # skip no cgroup v2\n"
	results, err := parseTAP("x.bats", []byte(out))
	if err != nil || len(results) != 3 {
		t.Fatalf("%+v, %v", results, err)
	}
	if r := results[0]; r.name != "x.bats: a name" || r.outcome != passed || r.took.Milliseconds() != 12 {
		t.Errorf("the first is %+v", r)
	}
	if r := results[1]; r.outcome != failed || !strings.Contains(r.text, "line 7") {
		t.Errorf("the second is %+v", r)
	}
	if r := results[2]; r.name != "x.bats: third" || r.outcome != skipped || r.text != "no cgroup v2" {
		t.Errorf("the third is %+v", r)
	}
	for _, short := range []string{"", "1..2\nok 1 a\n"} {
		if _, err := parseTAP("x.bats", []byte(short)); err == nil {
			t.Errorf("%q is a whole report", short)
		}
	}
}
