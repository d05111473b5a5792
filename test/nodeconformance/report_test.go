package main

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
	was := expectedFailures
	defer func() { expectedFailures = was }()
	expectedFailures = []expectedFailure{
		{spec: "cannot work", why: "nobody can"},
		{spec: "fails there", runtime: "containerd", why: "it cannot"},
		{spec: "group", failure: "why not", why: "it cannot"},
		{spec: "needs wings", lacks: "wings", why: "it cannot"},
	}
	// All that is expected is of specs that the suite has, run or not.
	leftOut := withText(leftOutSpec, "cannot work, fails there, a group, needs wings")
	for name, c := range map[string]struct {
		suite   []byte
		runtime string
		want    string // part of the error; empty: none
	}{
		"all pass":                        {suiteOf("true", withText(passedSpec, "works")), "berth", ""},
		"an expected failure":             {suiteOf("false", withText(failedSpec, "cannot work")), "berth", ""},
		"another failure":                 {suiteOf("false", withText(failedSpec, "works")), "berth", "1 specs failed"},
		"an expected failure that passes": {suiteOf("true", withText(passedSpec, "cannot work")), "berth", "1 passed"},
		"one that another runtime passes": {suiteOf("true", withText(passedSpec, "fails there")), "berth", ""},
		"one that fails there":            {suiteOf("false", withText(failedSpec, "fails there")), "containerd", ""},
		"what the machine lacks":          {suiteOf("false", withText(failedSpec, "needs wings")), "berth", ""},
		"one of a group that fails so":    {suiteOf("false", withText(failedSpec, "group 1")), "berth", ""},
		"one of a group that passes":      {suiteOf("true", withText(passedSpec, "group 2")), "berth", ""},
		"the suite beside its specs":      {suiteOf("false", withText(passedSpec, "works")), "berth", "beside its specs"},
	} {
		suite := bytes.Replace(c.suite, []byte(`"SpecReports": [`), []byte(`"SpecReports": [`+leftOut+`,`), 1)
		r, err := parseReport(suite, c.runtime, []string{"wings"})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch err := r.verdict(); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
	r, err := parseReport(suiteOf("true", withText(passedSpec, "works")), "berth", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.verdict(); err == nil || !strings.Contains(err.Error(), `no spec "cannot work"`) {
		t.Errorf("specs are expected to fail that the suite does not have: %v", err)
	}
	if _, err := parseReport(suiteOf("true"), "berth", nil); err == nil {
		t.Error("a report without specs is taken")
	}
}
