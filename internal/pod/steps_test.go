package pod

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

func TestAFailedStepUndoesItselfAndAllBeforeIt(t *testing.T) {
	var did []string
	boom := errors.New("boom")
	mk := func(name string, err error) step {
		return step{
			name: name,
			do:   func(context.Context) error { did = append(did, "do "+name); return err },
			undo: func(context.Context) error { did = append(did, "undo "+name); return nil },
		}
	}
	_, undone, err := runSteps(t.Context(), slog.New(slog.DiscardHandler),
		[]step{mk("a", nil), mk("b", boom), mk("c", nil)})
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "b: ") {
		t.Errorf("error %v does not name the step", err)
	}
	if !undone {
		t.Error("all was undone, and it says otherwise")
	}
	if want := []string{"do a", "do b", "undo b", "undo a"}; !slices.Equal(did, want) {
		t.Errorf("did %v, want %v", did, want)
	}
}

func TestAClientThatGoesStopsTheStartButNotItsUndo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	undone := false
	_, clean, err := runSteps(ctx, slog.New(slog.DiscardHandler), []step{
		{
			name: "a",
			do:   func(context.Context) error { cancel(); return nil },
			undo: func(ctx context.Context) error { undone = ctx.Err() == nil; return nil },
		},
		{name: "b", do: func(context.Context) error { t.Error("b ran"); return nil }},
	})
	if !errors.Is(err, context.Canceled) || !undone || !clean {
		t.Errorf("err %v, undone %v, clean %v", err, undone, clean)
	}
}

func TestAnUndoThatFailsIsReported(t *testing.T) {
	_, undone, _ := runSteps(t.Context(), slog.New(slog.DiscardHandler), []step{{
		name: "a",
		do:   func(context.Context) error { return errors.New("no") },
		undo: func(context.Context) error { return errors.New("stuck") },
	}})
	if undone {
		t.Error("it says that all was undone")
	}
}

func TestPhasesOnlyGoForward(t *testing.T) {
	for _, c := range []struct {
		from, to ContainerPhase
		ok       bool
	}{
		{ContainerCreated, ContainerStarting, true},
		{ContainerRunning, ContainerExited, true},
		{ContainerExited, ContainerExited, true},
		{ContainerExited, ContainerRunning, false},
		{ContainerRemoving, ContainerCreated, false},
		{ContainerCreated, ContainerRunning, false},
	} {
		err := checkPhase(containerNext, "x", c.from, c.to)
		if (err == nil) != c.ok {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
		if err != nil && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s to %s: %v is not FailedPrecondition", c.from, c.to, err)
		}
	}
}

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

func TestResolvConf(t *testing.T) {
	got, err := resolvConf(&model.DNS{
		Servers: []string{"10.0.0.10"}, Searches: []string{"a.svc", "svc"}, Options: []string{"ndots:5"},
	})
	if want := "search a.svc svc\nnameserver 10.0.0.10\noptions ndots:5\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := resolvConf(&model.DNS{Servers: []string{"1.1.1.1\nnameserver 6.6.6.6"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a line break: %v", err)
	}
}

func TestLogPathStaysInThePodsDirectory(t *testing.T) {
	if got, err := logPath("/var/log/pods/a", "c/0.log"); err != nil || got != "/var/log/pods/a/c/0.log" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range [][2]string{{"/logs", "../x"}, {"/logs", "a/../../x"}, {"logs", "x"}, {"/logs", "."}} {
		if got, err := logPath(bad[0], bad[1]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %q, %v", bad, got, err)
		}
	}
	if got, err := logPath("", "x"); err != nil || got != "" {
		t.Errorf("no directory: %q, %v", got, err)
	}
}
