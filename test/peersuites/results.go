package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped outcome = "skipped"  // by the suite itself
	leftOut outcome = "left out" // by us
)

// result is what became of one story of a suite.
type result struct {
	name    string
	outcome outcome
	took    time.Duration
	text    string // of a failure: what the suite printed; else the reason
}

// verdictOf compares results with the list of failures that are expected: complaints has a line for each that differs.
// With a focus, or against another runtime, what did not run is nothing to complain of.
func verdictOf(results []result, expected, unsteady map[string]string, whole bool) (complaints []string) {
	seen := map[string]bool{}
	for _, r := range results {
		seen[r.name] = true
		_, listed := expected[r.name]
		switch {
		case unsteady[r.name] != "":
		case r.outcome == failed && !listed:
			complaints = append(complaints, "failed: "+r.name)
		case r.outcome != failed && listed:
			complaints = append(complaints, fmt.Sprintf("%s, where a failure is listed: %s", r.outcome, r.name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		if whole && !seen[name] {
			complaints = append(complaints, "listed, and not in the suite: "+name)
		}
	}
	return complaints
}

// unknown are the names of a list of ours that a suite does not have.
func unknown(list map[string]string, results []result) (complaints []string) {
	seen := map[string]bool{}
	for _, r := range results {
		seen[r.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if !seen[name] {
			complaints = append(complaints, "listed, and not in the suite: "+name)
		}
	}
	return complaints
}

func count(results []result, o outcome) (n int) {
	for _, r := range results {
		if r.outcome == o {
			n++
		}
	}
	return n
}

// line is a run in one line.
func line(suite string, results []result, took time.Duration) string {
	return fmt.Sprintf("%-11s %3d passed, %3d failed, %3d skipped, %3d left out, %v", suite+":", count(results, passed),
		count(results, failed), count(results, skipped), count(results, leftOut), took.Round(time.Second))
}

// reasons writes what did not pass, by its reason.
func reasons(w io.Writer, results []result, expected, unsteady map[string]string) {
	for _, o := range []outcome{failed, skipped, leftOut} {
		by := map[string][]string{}
		for _, r := range results {
			if r.outcome != o {
				continue
			}
			why := r.text
			if o == failed {
				why = cmp.Or(expected[r.name], unsteady[r.name], "NOT LISTED")
			}
			by[why] = append(by[why], r.name)
		}
		for _, why := range slices.Sorted(maps.Keys(by)) {
			fmt.Fprintf(w, "  %s, %d: %s\n    %s\n", o, len(by[why]), why, strings.Join(by[why], "\n    "))
		}
	}
}
