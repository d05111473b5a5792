package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"time"

	"berth/test/conformance/ginkgo"
)

// impossible are the specs that no image of ours can satisfy: why, and how they fail. Where such an image
// is to be had they pass.
var impossible = map[string]struct{ why, failure string }{
	"public image with digest should be pulled and removed [Conformance]": {
		why: "names an image by the digest of its upstream build", failure: "code = NotFound",
	},
}

// report is what one run of critest says.
type report struct {
	run   run
	suite ginkgo.Report
	// Specs by what became of them. benchmarks are not part of the conformance suite.
	passed, failed, skipped, leftOut, benchmarks []ginkgo.Spec
}

func readReport(file string, r run) (*report, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseReport(data, r)
}

func parseReport(data []byte, r run) (*report, error) {
	suite, err := ginkgo.Parse(data)
	if err != nil {
		return nil, err
	}
	rep := &report{run: r, suite: suite}
	for _, s := range rep.suite.SpecReports {
		switch fate := s.Fate(); {
		case fate == ginkgo.Passed:
			rep.passed = append(rep.passed, s)
		case fate == ginkgo.Skipped:
			rep.skipped = append(rep.skipped, s)
		case fate == ginkgo.LeftOut && strings.Contains(s.Name(), "benchmark"):
			rep.benchmarks = append(rep.benchmarks, s)
		case fate == ginkgo.LeftOut:
			rep.leftOut = append(rep.leftOut, s)
		case fate == ginkgo.Failed:
			rep.failed = append(rep.failed, s)
		}
	}
	if len(rep.passed)+len(rep.failed) == 0 {
		return nil, errors.New("no spec has run")
	}
	return rep, nil
}

// known says why a failed spec cannot pass; ok is false for a failure that counts.
func known(s ginkgo.Spec) (why string, ok bool) {
	known, ok := impossible[s.LeafNodeText]
	return known.why, ok && s.State == "failed" && strings.Contains(s.Failure.Message, known.failure)
}

// unexpected is how many failures count.
func (r *report) unexpected() int {
	n := 0
	for _, s := range r.failed {
		if _, ok := known(s); !ok {
			n++
		}
	}
	// A suite may fail beside its specs, by its time limit for one.
	if n == 0 && !r.suite.SuiteSucceeded && len(r.failed) == 0 {
		n++
	}
	return n
}

// line is the report in one line.
func (r *report) line() string {
	return fmt.Sprintf("%-14s %3d passed, %d failed (%d of them known), %d skipped, %d left out, %v",
		r.run.name+":", len(r.passed), len(r.failed), len(r.failed)-min(len(r.failed), r.unexpected()),
		len(r.skipped), len(r.leftOut), r.suite.RunTime.Round(time.Second))
}

// print writes the counts, the reasons for what was skipped, and the failures.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s (seed %d)\n", r.line(), r.suite.SuiteConfig.RandomSeed)
	for _, reason := range r.suite.SpecialSuiteFailureReasons {
		fmt.Fprintf(w, "  suite: %s\n", reason)
	}
	reasons := map[string][]string{}
	for _, s := range r.skipped {
		reason := strings.TrimSpace(s.Failure.Message)
		reasons[reason] = append(reasons[reason], s.Name())
	}
	for _, reason := range sortedKeys(reasons) {
		fmt.Fprintf(w, "  skipped, %d: %s\n", len(reasons[reason]), reason)
		for _, name := range reasons[reason] {
			fmt.Fprintf(w, "    %s\n", name)
		}
	}
	if len(r.leftOut) > 0 {
		why := r.run.why
		if why == "" {
			why = "-focus"
		}
		fmt.Fprintf(w, "  left out, %d: %s\n", len(r.leftOut), why)
	}
	for _, s := range r.failed {
		if why, ok := known(s); ok {
			fmt.Fprintf(w, "  failed, known: %s\n    %s\n", s.Name(), why)
			continue
		}
		fmt.Fprintf(w, "  FAILED (%s, %v): %s\n    %s:%d\n%s\n", s.State, s.RunTime.Round(time.Millisecond), s.Name(),
			s.Failure.Location.FileName, s.Failure.Location.LineNumber, indent(s.Failure.Message))
	}
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

func sortedKeys(m map[string][]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
