package steps

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"berth/internal/undo"
)

// tracer makes the spans of traces. Without an OpenTelemetry provider, which the configuration sets, a span
// does nothing.
var tracer = otel.Tracer("berth/internal/pod")

// Step is one part of a start. Do makes something, Undo removes it; either may be nil.
//
// Undo must be idempotent and right after any part of Do, since it also runs for the step that failed.
type Step struct {
	// Name is what the step does, as in "mount the root file system": it is in errors, timings and traces. A step
	// without a name is bookkeeping: it has no timing, and its error is returned without a name before it.
	Name string
	Do   func(context.Context) error
	Undo func(context.Context) error
}

// Timing is how long a step took.
type Timing struct {
	Step  string        `json:"step"`
	Of    string        `json:"of,omitempty"` // the step that it is a part of
	Begin time.Time     `json:"begin,omitzero"`
	Took  time.Duration `json:"took"`
}

// Run runs steps in order, and then finish with how long each of them took. When a step or finish fails, or ctx ends
// before a step, the steps that have begun are undone in reverse order; the error names the step. undone is false
// when something could not be undone, which is logged.
func Run(ctx context.Context, log *slog.Logger, list []Step, finish func([]Timing) error) (undone bool, err error) {
	timings := make([]Timing, 0, len(list))
	for i := range list {
		begin := time.Now()
		if err := list[i].run(ctx); err != nil {
			return undoAll(ctx, log, list[:i+1]), err
		}
		if list[i].Name != "" {
			timings = append(timings, Timing{Step: list[i].Name, Begin: begin, Took: time.Since(begin)})
		}
	}
	if err := finish(timings); err != nil {
		return undoAll(ctx, log, list), err
	}
	return false, nil
}

func (s *Step) run(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return s.named(err)
	}
	if s.Do == nil {
		return nil
	}
	if s.Name == "" {
		return s.Do(ctx)
	}
	traced, span := tracer.Start(ctx, s.Name)
	defer span.End()
	err := s.Do(traced)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return s.named(err)
}

// Trace makes a span of each part of a start that another process has timed.
func Trace(ctx context.Context, parts []Timing) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	for _, p := range parts {
		_, span := tracer.Start(ctx, p.Step, trace.WithTimestamp(p.Begin))
		span.End(trace.WithTimestamp(p.Begin.Add(p.Took)))
	}
}

// named puts the step's name before an error.
func (s *Step) named(err error) error {
	if err == nil || s.Name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", s.Name, err)
}

// undoAll undoes steps, the last one first, and tells whether all succeeded.
func undoAll(ctx context.Context, log *slog.Logger, list []Step) bool {
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	undone := true
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Undo == nil {
			continue
		}
		if err := list[i].Undo(ctx); err != nil {
			undone = false
			log.Error("undo of a step after a failure", "step", list[i].Name, "error", err)
		}
	}
	return undone
}
