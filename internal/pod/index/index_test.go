package index

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
	"berth/internal/pod/operation"
	"berth/internal/pod/record"
)

func TestIDsResolveByUniquePrefix(t *testing.T) {
	objects := map[string]int{"aabb": 1, "aacc": 2, "d": 3}
	for in, want := range map[string]int{"aabb": 1, "aab": 1, "d": 3} {
		if got, err := resolve("thing", objects, in); err != nil || got != want {
			t.Errorf("%q: %d, %v", in, got, err)
		}
	}
	if _, err := resolve("thing", objects, "aa"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("ambiguous: %v", err)
	}
	if _, err := resolve("thing", objects, "x"); !errdefs.IsNotFound(err) {
		t.Errorf("unknown: %v", err)
	}
	if _, err := resolve("thing", objects, ""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("empty: %v", err)
	}
}

// fixture is an index with tables for its records.
type fixture struct {
	*Index
	pods       *record.Sandboxes
	containers *record.Containers
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	return &fixture{
		Index:      New(),
		pods:       record.NewSandboxes(t.TempDir(), func(string) string { return "" }, log),
		containers: record.NewContainers(t.TempDir(), nil, log),
	}
}

func (f *fixture) addSandbox(id string, cfg model.SandboxConfig) (*Sandbox, error) {
	r := record.Sandbox{ID: id, Phase: record.SandboxCreating, Config: &cfg}
	return f.AddSandbox(f.pods, r, operation.New())
}

func (f *fixture) addContainer(id string, s *Sandbox, cfg model.ContainerConfig) (*Container, error) {
	r := record.Container{ID: id, SandboxID: s.ID(), Phase: record.ContainerCreating, Config: &cfg}
	return f.AddContainer(f.containers, r, s, operation.New())
}

// TestANameIsTakenUntilItsPodIsForgotten, of a pod and of a container in it.
func TestANameIsTakenUntilItsPodIsForgotten(t *testing.T) {
	f := newFixture(t)
	web := model.SandboxConfig{Metadata: model.SandboxMetadata{Name: "web"}}
	server := model.ContainerConfig{Metadata: model.ContainerMetadata{Name: "server"}}
	s, err := f.addSandbox("a", web)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.addSandbox("b", web); !errdefs.IsAlreadyExists(err) || f.Has("b") {
		t.Errorf("a second pod of the name: %v", err)
	}
	c, err := f.addContainer("c", s, server)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.addContainer("d", s, server); !errdefs.IsAlreadyExists(err) || len(f.ContainersOf("a")) != 1 {
		t.Errorf("a second container of the name: %v", err)
	}
	f.ForgetContainer(c)
	f.ForgetSandbox(s)
	if !f.Gone(s) || !f.GoneContainer(c) || f.Has("a") || f.Has("c") {
		t.Error("what is forgotten is there")
	}
	if s, err = f.addSandbox("b", web); err != nil {
		t.Fatal(err)
	}
	if _, err := f.addContainer("d", s, server); err != nil {
		t.Error(err)
	}
}

// TestNamesOfTwoPartsAreNotMixedUp: a_b of c is not a of b_c.
func TestNamesOfTwoPartsAreNotMixedUp(t *testing.T) {
	f := newFixture(t)
	for id, meta := range map[string]model.SandboxMetadata{
		"a": {Name: "a_b", Namespace: "c"}, "b": {Name: "a", Namespace: "b_c"},
	} {
		if _, err := f.addSandbox(id, model.SandboxConfig{Metadata: meta}); err != nil {
			t.Error(err)
		}
	}
}

// TestAClientWithoutMetadataGetsAFreeAttempt, once the first pod of the name has stopped.
func TestAClientWithoutMetadataGetsAFreeAttempt(t *testing.T) {
	f := newFixture(t)
	cfg := model.SandboxConfig{Name: "web", Metadata: model.SandboxMetadata{Name: "web"}}
	first, err := f.addSandbox("a", cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.addSandbox("b", cfg); !errdefs.IsAlreadyExists(err) {
		t.Errorf("while the first is there: %v", err)
	}
	if err := first.Update(record.Repair, func(r *record.Sandbox) { r.Phase = record.SandboxStopped }); err != nil {
		t.Fatal(err)
	}
	second, err := f.addSandbox("b", cfg)
	if err != nil || second.Record().Config.Metadata.Attempt != 1 {
		t.Errorf("the second is attempt %d (%v)", second.Record().Config.Metadata.Attempt, err)
	}
	if cfg.Metadata.Attempt != 0 {
		t.Error("the client's configuration was written to")
	}
}

// TestLoadedObjectsKeepTheirNames over a restart of berthd.
func TestLoadedObjectsKeepTheirNames(t *testing.T) {
	f := newFixture(t)
	web := model.SandboxConfig{Metadata: model.SandboxMetadata{Name: "web", Namespace: "default"}}
	server := model.ContainerConfig{Metadata: model.ContainerMetadata{Name: "server"}}
	s := NewSandbox(f.pods.New("a", record.Sandbox{ID: "a", Config: &web}))
	f.AdoptSandbox(s)
	f.AdoptContainer(NewContainer(f.containers.New("c", record.Container{ID: "c", SandboxID: "a", Config: &server}), s))
	if _, err := f.addSandbox("b", web); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a pod of its name: %v", err)
	}
	if _, err := f.addContainer("d", s, server); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a container of its name: %v", err)
	}
	names := f.ContainerNames([]string{"c", "gone"})
	if names[0] != "server (c) of pod default/web" || names[1] != "gone" {
		t.Errorf("named are %q", names)
	}
	if !f.HasSandboxOf("") || f.HasSandboxOf("another") {
		t.Error("the pod is not found by its UID")
	}
}

// TestASpecificationIsInMemoryUntilTheStart, and on disk from the beginning.
func TestASpecificationIsInMemoryUntilTheStart(t *testing.T) {
	f := newFixture(t)
	c := NewContainer(f.containers.New("c", record.Container{ID: "c", Config: &model.ContainerConfig{}}), nil)
	spec := &specs.Spec{Hostname: "web"}
	if err := c.SaveSpec(spec); err != nil {
		t.Fatal(err)
	}
	if got, err := c.LoadSpec(); err != nil || got != spec {
		t.Errorf("before the start: %+v, %v", got, err)
	}
	c.DropSpec()
	if got, err := c.LoadSpec(); err != nil || got == spec || got.Hostname != "web" {
		t.Errorf("after it: %+v, %v", got, err)
	}
}

// TestAStopCutsACheckpoint that is under way, and those that come until it has ended.
func TestAStopCutsACheckpoint(t *testing.T) {
	f := newFixture(t)
	c := NewContainer(f.containers.New("c", record.Container{ID: "c", Config: &model.ContainerConfig{}}), nil)
	checkpoint := func() context.Context {
		ctx, cut := context.WithCancelCause(t.Context())
		c.SetCut(cut)
		return ctx
	}
	c.Stopping()()
	before := checkpoint()
	if err := context.Cause(before); err != nil {
		t.Errorf("a checkpoint after a stop ends for %v", err)
	}
	ended, other := c.Stopping(), c.Stopping()
	ended()
	during := checkpoint()
	other()
	if after := context.Cause(checkpoint()); !errors.Is(context.Cause(before), ErrCut) ||
		!errors.Is(context.Cause(during), ErrCut) || after != nil {
		t.Errorf("the checkpoints before, during and after a stop end for %v, %v and %v", context.Cause(before),
			context.Cause(during), after)
	}
}

// TestAPodIsNotRemovedWhileAContainerOfItStarts: the container's operation shares the lock of its pod.
func TestAPodIsNotRemovedWhileAContainerOfItStarts(t *testing.T) {
	f := newFixture(t)
	s := NewSandbox(f.pods.New("a", record.Sandbox{ID: "a", Config: &model.SandboxConfig{}}))
	c := NewContainer(f.containers.New("c", record.Container{ID: "c", Config: &model.ContainerConfig{}}), s)
	release, err := c.LockPod(t.Context(), "start")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := s.Lock(ctx, "remove"); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "remove pod sandbox a") {
		t.Errorf("a removal meanwhile: %v", err)
	}
	if shared := s.TryShare(); shared == nil {
		t.Error("a second container cannot start")
	} else {
		shared()
	}
	release()
	if release, err = s.Lock(t.Context(), "remove"); err != nil {
		t.Fatal(err)
	}
	defer release()
	if s.TryShare() != nil {
		t.Error("a container starts in a pod that is being removed")
	}
}

// TestAPodsContainersAreFoundWithoutTheOthers, as they come, are forgotten, and are made known again by one ID.
func TestAPodsContainersAreFoundWithoutTheOthers(t *testing.T) {
	x := New()
	pods := record.NewSandboxes(t.TempDir(), func(string) string { return "" }, slog.New(slog.DiscardHandler))
	containers := record.NewContainers(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	pod := func(id string) *Sandbox {
		return NewSandbox(pods.New(id, record.Sandbox{ID: id, Config: &model.SandboxConfig{}}))
	}
	container := func(id string, s *Sandbox) *Container {
		return NewContainer(containers.New(id, record.Container{
			ID: id, SandboxID: s.ID(), Config: &model.ContainerConfig{Metadata: model.ContainerMetadata{Name: id}},
		}), s)
	}
	a, b := pod("a"), pod("b")
	a1, a2, b1 := container("a1", a), container("a2", a), container("b1", b)
	for _, c := range []*Container{a1, a2, b1, a1} {
		x.AdoptContainer(c)
	}
	of := func(s *Sandbox) (list []string) {
		for _, c := range x.ContainersOf(s.ID()) {
			list = append(list, c.ID())
		}
		slices.Sort(list)
		return list
	}
	if got := of(a); !slices.Equal(got, []string{"a1", "a2"}) {
		t.Errorf("pod a has %v", got)
	}
	x.ForgetContainer(a1)
	x.ForgetContainer(a1)
	if got, other := of(a), of(b); !slices.Equal(got, []string{"a2"}) || !slices.Equal(other, []string{"b1"}) {
		t.Errorf("after one is forgotten pod a has %v and pod b %v", got, other)
	}
	x.ForgetContainer(a2)
	x.ForgetContainer(b1)
	if got := of(a); len(got) != 0 || len(x.members) != 0 {
		t.Errorf("at the end pod a has %v, and the index %v", got, x.members)
	}
}
