package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/test/conformance/images"
)

// phase is one start of a runtime, and the runs of critest against it, all at the same time.
type phase struct {
	name string
	runs []run
}

// run is one run of critest.
type run struct {
	name      string
	websocket bool
	nri       bool   // the specs of NRI are run: their plugins hold up and refuse every pod of the runtime
	seed      int64  // added to the seed of all, so that two runs at the same time differ in their order
	focus     string // regular expression of the specs that are run; all where it is empty
	skip      string // regular expression of specs that are left out
	why       string // specs are left out
}

// alone are the specs that cannot run twice at the same time against one node, whatever the runtime: they remove images
// that the other run is about to look at, or they listen on a fixed port of the host.
const alone = `Image Manager|Image Consistency|Image Identifier Consistency|portforward|port mapping with host port`

var allPhases = []phase{
	{"spdy", []run{{name: "spdy", nri: true}}},
	{"websocket", []run{{name: "websocket", websocket: true, nri: true}}},
	{"twice", []run{
		{name: "twice, first"},
		{name: "twice, second", websocket: true, seed: 1, skip: alone,
			why: "fixed ports of the host, or the removal of images that the other run uses"},
	}},
	// After twice, this is what has not run over WebSocket, or at all.
	{"rest", []run{{name: "rest", websocket: true, nri: true, focus: alone + `|\bNRI\b`, why: "twice has them"}}},
}

// parsePhases finds phases by their names. focus is what the user wants to run alone: critest runs what one of two such
// expressions matches, so it cannot be given with a phase that has one.
func parsePhases(list, focus string) ([]phase, error) {
	var phases []phase
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(allPhases, func(p phase) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown phase %q: spdy, websocket, twice or rest", name)
		}
		if focus != "" && slices.ContainsFunc(allPhases[i].runs, func(r run) bool { return r.focus != "" }) {
			return nil, fmt.Errorf("phase %s chooses its specs itself: -focus is for the other phases", name)
		}
		phases = append(phases, allPhases[i])
	}
	return phases, nil
}

// runPhase runs a phase against a fresh runtime. The error is about the runtime and what it leaves behind;
// what specs say is in the reports.
func runPhase(ctx context.Context, s settings, tools *tools, built images.Images, p phase,
	results string) (reports []*report, err error) {
	t, err := startTarget(ctx, s, built)
	if err != nil {
		return nil, err
	}
	defer func() {
		if t.node != nil {
			err = errors.Join(err, copyLog(t.node.DaemonLog, filepath.Join(results, p.name+".daemon.log")))
		}
		err = errors.Join(err, t.stop())
	}()
	dir, err := os.MkdirTemp("", "critest-")
	if err != nil {
		return nil, err
	}
	before, err := segments(segmentSize)
	if err != nil {
		return nil, err
	}
	reports = make([]*report, len(p.runs))
	errs := make([]error, len(p.runs))
	var wait sync.WaitGroup
	for i, r := range p.runs {
		wait.Go(func() {
			reports[i], errs[i] = critest(ctx, s, tools, t, dir, results, r)
		})
	}
	wait.Wait()
	reports = slices.DeleteFunc(reports, func(r *report) bool { return r == nil })
	errs = append(errs, removeSegments(segmentSize, before), sweepTemporary(dir))
	if ctx.Err() == nil {
		errs = append(errs, leftBehind(ctx, tools, t))
	}
	return reports, errors.Join(errs...)
}

// leftBehind says what pods the suite has left, removes them, and fails where the runtime then leaves a trace
// of any pod.
func leftBehind(ctx context.Context, tools *tools, t *target) error {
	pods, err := tools.pods(ctx, t.address)
	if err != nil {
		return err
	}
	if len(pods) > 0 {
		fmt.Printf("critest has left %d pods\n", len(pods))
	}
	if t.node == nil {
		return nil
	}
	if err := t.node.RemoveAll(ctx); err != nil {
		return fmt.Errorf("remove the pods that critest has left: %w", err)
	}
	left, err := t.node.Settled(time.Minute)
	if err != nil {
		return err
	}
	if left.Count() > 0 && !t.node.Containerd {
		return fmt.Errorf("the runtime leaves behind:\n%s", left)
	}
	return nil
}

func copyLog(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
