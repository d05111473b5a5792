package ginkgo

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Expectation is a spec that cannot pass, and why.
type Expectation struct {
	Spec      string // a part of its name
	Failure   string // a part of its message, where Spec names a group of which some get past that point; empty: any
	Why       string
	Elsewhere bool // it fails on other machines, and has to pass in this run
}

// Summary is what a run says, beside what was expected.
type Summary struct {
	suite    Report
	expected []Expectation
	fates    map[Fate][]Spec
}

// Summarize reads the report of one suite. It is an error when no spec has run.
func Summarize(data []byte, expected []Expectation) (*Summary, error) {
	suite, err := Parse(data)
	if err != nil {
		return nil, err
	}
	s := &Summary{suite: suite, expected: expected, fates: map[Fate][]Spec{}}
	for _, spec := range suite.SpecReports {
		s.fates[spec.Fate()] = append(s.fates[spec.Fate()], spec)
	}
	if len(s.fates[Passed])+len(s.fates[Failed]) == 0 {
		return nil, errors.New("no spec has run")
	}
	return s, nil
}

// why says why a spec cannot pass; ok is false for one that has to.
func (s *Summary) why(spec Spec) (why string, ok bool) {
	for _, e := range s.expected {
		if !e.Elsewhere && strings.Contains(spec.Failure.Message, e.Failure) && strings.Contains(spec.Name(), e.Spec) {
			return e.Why, true
		}
	}
	return "", false
}

// unknown is an error where something is expected of a spec that the suite does not have. A report names all specs,
// those too that were left out.
func (s *Summary) unknown() error {
	var errs []error
	for _, e := range s.expected {
		has := func(spec Spec) bool { return strings.Contains(spec.Name(), e.Spec) }
		if !slices.ContainsFunc(s.suite.SpecReports, has) {
			errs = append(errs, fmt.Errorf("the suite has no spec %q, which is expected to fail", e.Spec))
		}
	}
	return errors.Join(errs...)
}

// Verdict is an error where a spec fails that has to pass, one passes that cannot, or one is expected to fail that the
// suite does not have.
func (s *Summary) Verdict() error {
	if err := s.unknown(); err != nil {
		return err
	}
	var failed, passed int
	for _, spec := range s.fates[Failed] {
		if _, ok := s.why(spec); !ok {
			failed++
		}
	}
	for _, spec := range s.fates[Passed] {
		if _, ok := s.why(spec); ok {
			passed++
		}
	}
	switch {
	case failed > 0 || passed > 0:
		return fmt.Errorf("%d specs failed that have to pass, %d passed that were expected to fail", failed, passed)
	case !s.suite.SuiteSucceeded && len(s.fates[Failed]) == 0:
		return fmt.Errorf("the suite failed beside its specs: %s", strings.Join(s.suite.SpecialSuiteFailureReasons, ", "))
	}
	return nil
}

// Print writes the failures, the reasons for what was skipped, and the counts, in a line that begins with the name of
// what was tested.
func (s *Summary) Print(w io.Writer, tested string) {
	known := 0
	for _, spec := range s.fates[Failed] {
		if why, ok := s.why(spec); ok {
			known++
			fmt.Fprintf(w, "failed, expected: %s\n    %s\n", spec.Name(), why)
			continue
		}
		message := strings.ReplaceAll(strings.TrimSpace(spec.Failure.Message), "\n", "\n    ")
		fmt.Fprintf(w, "FAILED (%s, %v): %s\n    %s:%d\n    %.2000s\n", spec.State, spec.RunTime.Round(time.Millisecond),
			spec.Name(), spec.Failure.Location.FileName, spec.Failure.Location.LineNumber, message)
	}
	for _, spec := range s.fates[Passed] {
		if why, ok := s.why(spec); ok {
			fmt.Fprintf(w, "PASSED, though expected to fail: %s\n    %s\n", spec.Name(), why)
		}
	}
	reasons := map[string]int{}
	for _, spec := range s.fates[Skipped] {
		reason, _, _ := strings.Cut(strings.TrimSpace(spec.Failure.Message), "\n")
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
		tested, s.suite.SuiteConfig.RandomSeed, len(s.fates[Passed]), len(s.fates[Failed]), known, len(s.fates[Skipped]),
		len(s.fates[LeftOut]), s.suite.RunTime.Round(time.Second))
}
