package steps

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestAFailedStepUndoesItselfAndAllBeforeIt(t *testing.T) {
	var did []string
	boom := errors.New("boom")
	mk := func(name string, err error) Step {
		return Step{
			Name: name,
			Do:   func(context.Context) error { did = append(did, "do "+name); return err },
			Undo: func(context.Context) error { did = append(did, "undo "+name); return nil },
		}
	}
	undone, err := Run(t.Context(), slog.New(slog.DiscardHandler), []Step{mk("a", nil), mk("b", boom), mk("c", nil)}, nil)
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

func TestAStepWithoutANameIsNotToldOf(t *testing.T) {
	boom, undone := errors.New("boom"), 0
	list := []Step{
		{Undo: func(context.Context) error { undone++; return nil }},
		{Do: func(context.Context) error { return boom }, Undo: func(context.Context) error { undone++; return nil }},
	}
	_, err := Run(t.Context(), slog.New(slog.DiscardHandler), list, nil)
	if err == nil || err.Error() != "boom" || undone != 2 {
		t.Errorf("error %v, %d undone", err, undone)
	}
	list[1].Do = nil
	_, err = Run(t.Context(), slog.New(slog.DiscardHandler), list, func(timings []Timing) error {
		if len(timings) > 0 {
			t.Errorf("timings %v", timings)
		}
		return boom
	})
	if !errors.Is(err, boom) || undone != 4 {
		t.Errorf("a finish that fails: error %v, %d undone", err, undone)
	}
}

func TestAClientThatGoesStopsTheStartButNotItsUndo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	undone := false
	clean, err := Run(ctx, slog.New(slog.DiscardHandler), []Step{
		{
			Name: "a",
			Do:   func(context.Context) error { cancel(); return nil },
			Undo: func(ctx context.Context) error { undone = ctx.Err() == nil; return nil },
		},
		{Name: "b", Do: func(context.Context) error { t.Error("b ran"); return nil }},
	}, nil)
	if !errors.Is(err, context.Canceled) || !undone || !clean {
		t.Errorf("err %v, undone %v, clean %v", err, undone, clean)
	}
}

func TestAnUndoThatFailsIsReported(t *testing.T) {
	undone, _ := Run(t.Context(), slog.New(slog.DiscardHandler), []Step{{
		Name: "a",
		Do:   func(context.Context) error { return errors.New("no") },
		Undo: func(context.Context) error { return errors.New("stuck") },
	}}, nil)
	if undone {
		t.Error("it says that all was undone")
	}
}
