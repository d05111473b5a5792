package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/registrytest"
	"berth/test/node"
)

// baselineFile names the revision that stands for the last release: a commit or a tag of this repository.
const baselineFile = "baseline"

// exceeded tells whether a ratio is larger than what is taken for the same.
func exceeded(ratios map[string]float64) bool {
	return slices.Max(slices.Collect(maps.Values(ratios))) > 1+baselineMargin
}

// What is measured and what is taken for the same. docs/benchmarks.md says how far runs differ.
const (
	baselineTurns  = 5
	baselineMargin = 0.15 // more than the baseline, as a share of it
	baselineRuns   = 3    // at most, until one is within the margin
)

// TestProcessorTimeIsThatOfTheBaseline fails where a pod's life or an exec takes more processor time than with the
// programs of the last release. These are built from the history, and both are measured in the same run, a dozen pods
// of the one after a dozen of the other: what the machine does meanwhile falls on both, and no figure of one machine is
// compared with one of another. A run that took more is repeated, and the least counts: other programs can make one of
// the two look dearer in one run, and work of its own does so in all. It has been seen to fail with 20 ms of work more
// in StartContainer.
func TestProcessorTimeIsThatOfTheBaseline(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	text, err := os.ReadFile(baselineFile)
	if err != nil {
		t.Fatal(err)
	}
	revision := strings.TrimSpace(string(text))
	ctx, cancel := context.WithTimeout(t.Context(), node.Patience(5*time.Minute))
	defer cancel()
	programs := buildRevision(ctx, t, revision)
	got := baselineRatios(ctx, t, programs)
	for run := 1; run < baselineRuns && exceeded(got); run++ {
		t.Logf("run %d took more than the baseline: %v", run, got)
		for name, ratio := range baselineRatios(ctx, t, programs) {
			got[name] = min(got[name], ratio)
		}
	}
	for name, ratio := range got {
		t.Logf("%s: %.2f times the processor time of %s", name, ratio, revision)
		if ratio > 1+baselineMargin {
			t.Errorf("%s takes %.2f times the processor time that it takes with the programs of %s; at most %.2f times "+
				"is taken for the same", name, ratio, revision, 1+baselineMargin)
		}
	}
}

// buildRevision builds the programs of a revision of this repository and returns their directory.
func buildRevision(ctx context.Context, t *testing.T, revision string) string {
	t.Helper()
	top := filepath.Join("..", "..")
	known := exec.CommandContext(ctx, "git", "-C", top, "cat-file", "-e", revision+"^{commit}")
	if out, err := known.CombinedOutput(); err != nil {
		t.Skipf("the history here does not go back to %s: %v: %s", revision, err, out)
	}
	tree := t.TempDir()
	archive := filepath.Join(t.TempDir(), "tree.tar")
	for _, args := range [][]string{
		{"git", "-C", top, "archive", "-o", archive, revision},
		{"tar", "-xf", archive, "-C", tree},
		{filepath.Join(tree, "packaging", "build.sh"), filepath.Join(tree, "bin"), "0.0.0"},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	return filepath.Join(tree, "bin")
}

// baselineRatios measures two private Berths, this tree's and one of the given programs, by turns. The median of the
// turns' ratios counts, by the operation.
func baselineRatios(ctx context.Context, t *testing.T, programs string) map[string]float64 {
	t.Helper()
	registry, err := node.NewRegistry()
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	this := startMeasured(ctx, t, registry, "berth", "")
	defer this.stop(ctx, t)
	base := startMeasured(ctx, t, registry, "base", programs)
	defer base.stop(ctx, t)
	all := map[string][]float64{}
	for turn := range baselineTurns {
		// Which is first takes turns too.
		order := []*measured{this, base}
		if turn%2 == 1 {
			slices.Reverse(order)
		}
		for _, m := range order {
			m.life = m.spent(ctx, t, lifeOptions, m.peer.live(ctx))
		}
		for _, m := range order {
			m.probe = m.spent(ctx, t, probeOptions, func() error { return m.peer.exec(ctx, m.pod.container) })
		}
		t.Logf("ms of processor time: a life %.2f, the baseline's %.2f; an exec %.2f, the baseline's %.2f",
			this.life, base.life, this.probe, base.probe)
		all[operationLife.title] = append(all[operationLife.title], this.life/base.life)
		all[operationExec.title] = append(all[operationExec.title], this.probe/base.probe)
	}
	medians := map[string]float64{}
	for name, values := range all {
		medians[name] = quantile(slices.Sorted(slices.Values(values)), 0.5)
	}
	return medians
}

var (
	lifeOptions  = &options{costs: 12, afterwards: 300 * time.Millisecond}
	probeOptions = &options{costs: 40, afterwards: lifeOptions.afterwards}
)

// measured is a private Berth, a pod in which its execs are measured, and what the last ones took, in ms.
type measured struct {
	peer        *peer
	pod         *pod
	life, probe float64
}

func startMeasured(ctx context.Context, t *testing.T, from *registrytest.Registry, name, programs string) *measured {
	t.Helper()
	start := func(ctx context.Context, n node.Options) (*node.Node, error) {
		n.Setup, n.CgroupDriver, n.Binaries = "stage", "cgroupfs", programs
		return node.Start(ctx, n)
	}
	p, err := startPrivate(ctx, lifeOptions, name, from, start)
	if err != nil {
		t.Fatal(err)
	}
	m := &measured{peer: p}
	if err = p.prepare(ctx, lifeOptions); err == nil {
		err = p.warm(ctx)
	}
	if err == nil {
		m.pod, _, err = p.start(ctx, nil)
	}
	if err != nil {
		m.stop(ctx, t)
		t.Fatal(err)
	}
	return m
}

// stop ends the node.
func (m *measured) stop(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := errors.Join(m.peer.remove(ctx, m.pod), m.peer.close()); err != nil {
		t.Error(err)
	}
}

// spent is the processor time in ms that one operation takes, the node's and that of what it starts.
func (m *measured) spent(ctx context.Context, t *testing.T, o *options, call func() error) float64 {
	t.Helper()
	u, err := m.peer.spent(ctx, o, nil, call)
	if err != nil {
		t.Fatal(err)
	}
	return rowCPULife.of(u.all.Total)
}
