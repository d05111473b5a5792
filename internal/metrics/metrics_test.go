package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// everything has each metric of a set happen once.
func everything(m *Set) {
	m.Pull("registry.example")(nil)
	m.Pull("registry.example")(errdefs.ErrUnavailable)
	m.Layer(LayerPulled)
	m.LayerBytes("registry.example", 7)
	m.Step("RunPodSandbox", "attach the network", time.Millisecond)
	m.Exit("OOMKilled", true)
	m.Exec(ExecSync, time.Second, nil)
	m.Exec(ExecSync, time.Second, errdefs.ErrNotFound)
	m.Stream(StreamExec)()
	m.CNI("bridge", "ADD", time.Second, errors.New("odd"))
	m.Verifier("cosign", VerifierAccepted, time.Second)
	m.NRI("10-plugin", "CreateContainer", time.Millisecond)
	m.NRIError("10-plugin", "CreateContainer")
	m.NRIPlugins(1)
	m.Record(RecordPod, time.Millisecond, errors.New("full"))
}

func sources(keeper func(context.Context) (*KeeperNumbers, error)) Sources {
	return Sources{
		Pods:       func() map[string]int { return map[string]int{"ready": 1} },
		Containers: func() map[string]int { return map[string]int{"running": 2} },
		Images:     func() ImageNumbers { return ImageNumbers{Images: 1, Alone: 2, Shared: 3, Bytes: 4, Inodes: 5} },
		Readings:   func() (cgroup, disk time.Time) { return time.Now(), time.Now() },
		Keeper:     keeper,
	}
}

func TestWhoMeasuresNothingMayCountAllTheSame(t *testing.T) {
	var m *Set
	everything(m)
	if m.Registry() != nil {
		t.Error("a nil Set has a registry")
	}
}

// TestEachDefinitionIsMeasuredByItsNameAndLabels, but for those of other packages, and each is named as Prometheus
// asks for.
func TestEachDefinitionIsMeasuredByItsNameAndLabels(t *testing.T) {
	m := New("1.2.3")
	if err := m.Add(sources(func(context.Context) (*KeeperNumbers, error) {
		return &KeeperNumbers{StartedAt: time.Now(), Counts: &KeeperCounts{}}, nil
	})); err != nil {
		t.Fatal(err)
	}
	everything(m)
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{}
	for _, f := range families {
		var names []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			names = append(names, l.GetName())
		}
		labels[f.GetName()] = strings.Join(names, " ")
		want := strings.ToUpper(string(definition(f.GetName()).Type))
		if strings.HasPrefix(f.GetName(), "berth_") && f.GetType().String() != want {
			t.Errorf("%s is a %s", f.GetName(), f.GetType())
		}
	}
	for _, d := range All() {
		if strings.HasPrefix(d.Name, "berth_device") || strings.HasPrefix(d.Name, "berth_cri_") {
			continue // of packages that measure by themselves
		}
		got, ok := labels[d.Name]
		if !ok {
			t.Errorf("%s is not measured", d.Name)
		}
		for _, l := range d.Labels {
			if !strings.Contains(" "+got+" ", " "+l+" ") {
				t.Errorf("%s has no label %s but %q", d.Name, l, got)
			}
		}
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "berth_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func definition(name string) Definition {
	for _, d := range All() {
		if d.Name == name {
			return *d
		}
	}
	return Definition{}
}

func TestRegistriesThatAnybodyMayNameMakeABoundedNumberOfSeries(t *testing.T) {
	m := New("")
	for i := range 3 * maxValues {
		m.Pull(fmt.Sprintf("registry%d.example", i))(errdefs.ErrNotFound)
	}
	if n := testutil.CollectAndCount(m.pullErrors); n != maxValues+1 {
		t.Errorf("%d series of %d registries, want %d", n, 3*maxValues, maxValues+1)
	}
	if n := testutil.ToFloat64(m.pullErrors.WithLabelValues(otherValue, "not_found")); n != 2*maxValues {
		t.Errorf("the other registries have %v errors, want %d", n, 2*maxValues)
	}
}

func TestReasonsAreAFewWords(t *testing.T) {
	for err, want := range map[error]string{
		fmt.Errorf("pull: %w", errdefs.ErrUnauthenticated):    "unauthenticated",
		fmt.Errorf("pull: %w", errdefs.ErrNotFound):           "not_found",
		fmt.Errorf("pull: %w", errdefs.ErrResourceExhausted):  "resource_exhausted",
		fmt.Errorf("pull: %w", errdefs.ErrUnavailable):        "unavailable",
		fmt.Errorf("pull: %w", errdefs.ErrPermissionDenied):   "permission_denied",
		fmt.Errorf("pull: %w", errdefs.ErrFailedPrecondition): "failed_precondition",
		fmt.Errorf("exec: %w", errdefs.ErrAborted):            "aborted",
		fmt.Errorf("pull: %w", context.DeadlineExceeded):      "deadline_exceeded",
		fmt.Errorf("pull: %w", context.Canceled):              "canceled",
		errors.New("odd"):                                     "unknown",
	} {
		if got := reason(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// TestAKeeperThatTellsNothingIsMissingNotZero: one that is too old has no counts, and one that is away has nothing but
// that it is.
func TestAKeeperThatTellsNothingIsMissingNotZero(t *testing.T) {
	for name, c := range map[string]struct {
		keeper func(context.Context) (*KeeperNumbers, error)
		up     string
		there  []string
	}{
		"too old": {func(context.Context) (*KeeperNumbers, error) { return &KeeperNumbers{Containers: 3}, nil }, "1",
			[]string{KeeperContainers.Name}},
		"away": {func(context.Context) (*KeeperNumbers, error) { return nil, errdefs.ErrUnavailable }, "0", nil},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewPedanticRegistry()
			if err := registry.Register(collector{sources(c.keeper)}); err != nil {
				t.Fatal(err)
			}
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprint(families)
			for _, name := range c.there {
				if !strings.Contains(text, name) {
					t.Errorf("no %s", name)
				}
			}
			for _, d := range []*Definition{LogBytes, KeeperQueue} {
				if strings.Contains(text, d.Name) {
					t.Errorf("%s is there", d.Name)
				}
			}
			if !strings.Contains(text, KeeperUp.Name) || !strings.Contains(text, `gauge:{value:`+c.up+`}`) {
				t.Errorf("want %s to be %s: %s", KeeperUp.Name, c.up, text)
			}
		})
	}
}
