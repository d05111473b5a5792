package ginkgo

import (
	"bytes"
	"strings"
	"testing"
)

const (
	passedSpec = `{"LeafNodeType": "It", "LeafNodeText": "TEXT", "State": "passed"}`
	failedSpec = `{"LeafNodeType": "It", "LeafNodeText": "TEXT", "State": "failed",
		"Failure": {"Message": "why not"}}`
	leftOutSpec = `{"LeafNodeType": "It", "LeafNodeText": "TEXT", "State": "skipped"}`
)

func suiteOf(ok string, specs ...string) []byte {
	return []byte(`[{"SuiteSucceeded": ` + ok + `, "SpecReports": [` + strings.Join(specs, ",") + `]}]`)
}

func withText(spec, text string) string { return strings.ReplaceAll(spec, "TEXT", text) }

// TestWhatIsExpectedToFailIsCheckedBothWays has a failure that is expected, one that is not, and a pass that is not.
func TestWhatIsExpectedToFailIsCheckedBothWays(t *testing.T) {
	expected := []Expectation{
		{Spec: "cannot work", Why: "nobody can"},
		{Spec: "fails there", Elsewhere: true, Why: "it cannot"},
		{Spec: "group", Failure: "why not", Why: "it cannot"},
	}
	// All that is expected is of specs that the suite has, run or not.
	leftOut := withText(leftOutSpec, "cannot work, fails there, a group")
	for name, c := range map[string]struct {
		suite []byte
		want  string // part of the error; empty: none
	}{
		"all pass":                        {suiteOf("true", withText(passedSpec, "works")), ""},
		"an expected failure":             {suiteOf("false", withText(failedSpec, "cannot work")), ""},
		"another failure":                 {suiteOf("false", withText(failedSpec, "works")), "1 specs failed"},
		"an expected failure that passes": {suiteOf("true", withText(passedSpec, "cannot work")), "1 passed"},
		"one that passes here":            {suiteOf("true", withText(passedSpec, "fails there")), ""},
		"one that fails elsewhere only":   {suiteOf("false", withText(failedSpec, "fails there")), "1 specs failed"},
		"one of a group that fails so":    {suiteOf("false", withText(failedSpec, "group 1")), ""},
		"one of a group that passes":      {suiteOf("true", withText(passedSpec, "group 2")), ""},
		"the suite beside its specs":      {suiteOf("false", withText(passedSpec, "works")), "beside its specs"},
	} {
		suite := bytes.Replace(c.suite, []byte(`"SpecReports": [`), []byte(`"SpecReports": [`+leftOut+`,`), 1)
		s, err := Summarize(suite, expected)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch err := s.Verdict(); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
	s, err := Summarize(suiteOf("true", withText(passedSpec, "works")), expected)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verdict(); err == nil || !strings.Contains(err.Error(), `no spec "cannot work"`) {
		t.Errorf("specs are expected to fail that the suite does not have: %v", err)
	}
	if _, err := Summarize(suiteOf("true"), nil); err == nil {
		t.Error("a report without specs is taken")
	}
}
