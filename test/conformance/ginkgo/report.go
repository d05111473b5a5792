// Package ginkgo reads the JSON reports of Kubernetes' suites, and compares them with what was expected.
package ginkgo

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Report is the part of a suite's report that is used.
type Report struct {
	SuiteSucceeded             bool
	SpecialSuiteFailureReasons []string
	RunTime                    time.Duration
	SuiteConfig                struct{ RandomSeed int64 }
	SpecReports                []Spec
}

// Spec is one spec, or a node that runs around them (BeforeSuite).
type Spec struct {
	ContainerHierarchyTexts  []string
	ContainerHierarchyLabels [][]string
	LeafNodeLabels           []string
	LeafNodeType             string
	LeafNodeText             string
	State                    string // passed, failed, skipped, pending, panicked, timedout, interrupted, aborted
	RunTime                  time.Duration
	Failure                  struct {
		Message  string
		Location struct {
			FileName   string
			LineNumber int
		}
	}
}

// Name is the whole text of a spec.
func (s Spec) Name() string {
	return strings.TrimSpace(strings.Join(s.ContainerHierarchyTexts, " ") + " " + s.LeafNodeText)
}

// Fate is what became of a spec.
type Fate string

// The fates. LeftOut was not asked for, or waits for its author; Skipped began and found that the node cannot run it.
// Around is what succeeded beside the specs.
const (
	Passed  Fate = "passed"
	Failed  Fate = "failed"
	Skipped Fate = "skipped"
	LeftOut Fate = "left out"
	Around  Fate = "around"
)

// Fate is what became of the spec. What runs around specs counts where it fails.
func (s Spec) Fate() Fate {
	switch {
	case s.State == "passed" && s.LeafNodeType == "It":
		return Passed
	case s.State == "passed":
		return Around
	case s.State == "skipped" && s.Failure.Message != "":
		return Skipped
	case s.State == "skipped" || s.State == "pending":
		return LeftOut
	default:
		return Failed
	}
}

// Parse reads the report of one suite.
func Parse(data []byte) (Report, error) {
	var suites []Report
	if err := json.Unmarshal(data, &suites); err != nil {
		return Report{}, err
	}
	if len(suites) != 1 {
		return Report{}, fmt.Errorf("a report of %d suites", len(suites))
	}
	return suites[0], nil
}
