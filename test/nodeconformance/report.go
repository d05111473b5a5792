package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/test/conformance/ginkgo"
)

// report is what a run says, beside what was expected.
type report struct {
	suite   ginkgo.Report
	runtime string
	lacking []string // of this machine
	fates   map[ginkgo.Fate][]ginkgo.Spec
}

func readReport(s settings) (*report, error) {
	data, err := os.ReadFile(filepath.Join(s.Results, reportFile))
	if err != nil {
		return nil, err
	}
	lacking, err := readLacking(s.Results)
	if err != nil {
		return nil, err
	}
	return parseReport(data, s.Runtime, lacking)
}

func parseReport(data []byte, runtime string, lacking []string) (*report, error) {
	suite, err := ginkgo.Parse(data)
	if err != nil {
		return nil, err
	}
	r := &report{suite: suite, runtime: runtime, lacking: lacking, fates: map[ginkgo.Fate][]ginkgo.Spec{}}
	for _, s := range suite.SpecReports {
		r.fates[s.Fate()] = append(r.fates[s.Fate()], s)
	}
	if len(r.fates[ginkgo.Passed])+len(r.fates[ginkgo.Failed]) == 0 {
		return nil, errors.New("no spec has run")
	}
	return r, nil
}

// expected says why a spec cannot pass with the report's runtime; ok is false for one that has to.
func (r *report) expected(s ginkgo.Spec) (why string, ok bool) {
	for _, e := range expectedFailures {
		here := (e.runtime == "" || e.runtime == r.runtime) && (e.lacks == "" || slices.Contains(r.lacking, e.lacks))
		fails := e.failure == "" || strings.Contains(s.Failure.Message, e.failure)
		if here && fails && strings.Contains(s.Name(), e.spec) {
			return e.why, true
		}
	}
	return "", false
}

// unknown is an error where something is expected of a spec that the suite does not have. A report names all specs,
// those too that were left out.
func (r *report) unknown() error {
	var errs []error
	for _, e := range expectedFailures {
		if !slices.ContainsFunc(r.suite.SpecReports, func(s ginkgo.Spec) bool { return strings.Contains(s.Name(), e.spec) }) {
			errs = append(errs, fmt.Errorf("the suite has no spec %q, which is expected to fail", e.spec))
		}
	}
	return errors.Join(errs...)
}

// verdict is an error where a spec fails that has to pass, one passes that cannot, or one is expected to fail that the
// suite does not have.
func (r *report) verdict() error {
	if err := r.unknown(); err != nil {
		return err
	}
	var failed, passed int
	for _, s := range r.fates[ginkgo.Failed] {
		if _, ok := r.expected(s); !ok {
			failed++
		}
	}
	for _, s := range r.fates[ginkgo.Passed] {
		if _, ok := r.expected(s); ok {
			passed++
		}
	}
	switch {
	case failed > 0 || passed > 0:
		return fmt.Errorf("%d specs failed that have to pass, %d passed that were expected to fail", failed, passed)
	case !r.suite.SuiteSucceeded && len(r.fates[ginkgo.Failed]) == 0:
		return fmt.Errorf("the suite failed beside its specs: %s", strings.Join(r.suite.SpecialSuiteFailureReasons, ", "))
	}
	return nil
}

// print writes the counts, the reasons for what was skipped, and the failures.
func (r *report) print(w io.Writer) {
	known := 0
	for _, s := range r.fates[ginkgo.Failed] {
		why, ok := r.expected(s)
		if ok {
			known++
			fmt.Fprintf(w, "failed, expected: %s\n    %s\n", s.Name(), why)
			continue
		}
		message := strings.ReplaceAll(strings.TrimSpace(s.Failure.Message), "\n", "\n    ")
		fmt.Fprintf(w, "FAILED (%s, %v): %s\n    %s:%d\n    %.2000s\n", s.State, s.RunTime.Round(time.Millisecond), s.Name(),
			s.Failure.Location.FileName, s.Failure.Location.LineNumber, message)
	}
	for _, s := range r.fates[ginkgo.Passed] {
		if why, ok := r.expected(s); ok {
			fmt.Fprintf(w, "PASSED, though expected to fail: %s\n    %s\n", s.Name(), why)
		}
	}
	reasons := map[string]int{}
	for _, s := range r.fates[ginkgo.Skipped] {
		reason, _, _ := strings.Cut(strings.TrimSpace(s.Failure.Message), "\n")
		reasons[reason]++
	}
	var lines []string
	for reason, n := range reasons {
		lines = append(lines, fmt.Sprintf("skipped, %d: %s", n, reason))
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "%s, seed %d: %d passed, %d failed (%d of them expected), %d skipped, %d left out, %v\n",
		r.runtime, r.suite.SuiteConfig.RandomSeed, len(r.fates[ginkgo.Passed]), len(r.fates[ginkgo.Failed]), known,
		len(r.fates[ginkgo.Skipped]), len(r.fates[ginkgo.LeftOut]), r.suite.RunTime.Round(time.Second))
}
