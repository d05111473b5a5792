package main

import (
	"strings"
	"testing"

	"berth/test/conformance/ginkgo"
)

// allFates is a report with one spec of each fate.
const allFates = `[{"SuiteSucceeded": false, "RunTime": 2000000000, "SuiteConfig": {"RandomSeed": 7}, "SpecReports": [
 {"LeafNodeType": "BeforeSuite", "State": "passed"},
 {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "works", "State": "passed"},
 {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "does not work", "State": "failed",
  "Failure": {"Message": "why\nnot", "Location": {"FileName": "a.go", "LineNumber": 3}}},
 {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "hangs", "State": "timedout"},
 {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "needs more", "State": "skipped",
  "Failure": {"Message": "no more"}},
 {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "is not asked for", "State": "skipped"},
 {"ContainerHierarchyTexts": ["benchmark"], "LeafNodeType": "It", "LeafNodeText": "is fast", "State": "skipped"},
 {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "State": "failed",
  "LeafNodeText": "public image with digest should be pulled and removed [Conformance]",
  "Failure": {"Message": "rpc error: code = NotFound desc = no such image"}},
 {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "State": "failed",
  "LeafNodeText": "public image with digest should be pulled and removed [Conformance]",
  "Failure": {"Message": "rpc error: code = Unavailable desc = no daemon"}}]}]`

func TestEverySpecOfAReportIsCountedOnce(t *testing.T) {
	r, err := parseReport([]byte(allFates), run{name: "all", why: "asked"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind string
		got  []ginkgo.Spec
		want int
	}{
		{"passed", r.passed, 1}, {"failed", r.failed, 4}, {"skipped", r.skipped, 1}, {"left out", r.leftOut, 1},
		{"benchmarks", r.benchmarks, 1},
	} {
		if len(c.got) != c.want {
			t.Errorf("%s: %d specs, want %d", c.kind, len(c.got), c.want)
		}
	}
	if got := r.unexpected(); got != 3 {
		t.Errorf("%d failures count, want 3: one is known", got)
	}
	var out strings.Builder
	r.print(&out)
	for _, want := range []string{
		"1 passed, 4 failed (1 of them known), 1 skipped, 1 left out, 2s (seed 7)", "skipped, 1: no more\n    A needs more",
		"left out, 1: asked", "FAILED (failed, 0s): A does not work\n    a.go:3\n    why\n    not",
		"FAILED (timedout, 0s): A hangs",
		"failed, known: A public image with digest",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the print lacks %q:\n%s", want, out.String())
		}
	}
}

func TestAReportThatSaysNothingIsAnError(t *testing.T) {
	for name, data := range map[string]string{
		"nothing": "", "no suite": "[]", "cut": `[{"SuiteSucceeded": tr`,
		"no spec": `[{"SuiteSucceeded": true, "SpecReports": [{"LeafNodeType": "BeforeSuite", "State": "passed"}]}]`,
	} {
		if _, err := parseReport([]byte(data), run{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestASuiteThatFailsBesideItsSpecsCounts(t *testing.T) {
	r, err := parseReport([]byte(`[{"SuiteSucceeded": false, "SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"],
		"SpecReports": [{"LeafNodeType": "It", "State": "passed"}]}]`), run{})
	if err != nil {
		t.Fatal(err)
	}
	if r.unexpected() != 1 {
		t.Error("a suite that ran out of its time passes")
	}
}
