package pod

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"berth/internal/keeper"
)

// tracer makes spans for whoever has set a provider; until then they are nothing.
var tracer = otel.Tracer("berth/internal/pod")

// tracePhases makes spans of what the keeper says it did.
func tracePhases(ctx context.Context, phases []keeper.Phase) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	for _, p := range phases {
		_, span := tracer.Start(ctx, p.Name, trace.WithTimestamp(p.Begin))
		span.End(trace.WithTimestamp(p.Begin.Add(p.Took)))
	}
}

// undoTimeout bounds the undo of a failed start. What is not undone by then stays in the record and is removed by the
// next removal or the next start of berthd.
const undoTimeout = 30 * time.Second

// step is one part of a start. Undo must be idempotent and right after any part of do, since it also runs for the step
// that failed.
type step struct {
	name string
	do   func(context.Context) error
	undo func(context.Context) error
}

// Timing is how long a step took.
type Timing struct {
	Step  string        `json:"step"`
	Of    string        `json:"of,omitempty"` // the step that it is a part of
	Begin time.Time     `json:"begin,omitzero"`
	Took  time.Duration `json:"took"`
}

// runSteps runs steps in order. When one fails, it and those before it are undone in reverse order, and the error names the
// step. undone is false when something could not be undone.
func runSteps(ctx context.Context, log *slog.Logger, steps []step) (timings []Timing, undone bool, err error) {
	timings = make([]Timing, 0, len(steps))
	for i, s := range steps {
		begin := time.Now()
		if err = ctx.Err(); err == nil {
			traced, span := tracer.Start(ctx, s.name)
			if err = s.do(traced); err != nil {
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}
		timings = append(timings, Timing{Step: s.name, Begin: begin, Took: time.Since(begin)})
		if err == nil {
			continue
		}
		err = fmt.Errorf("%s: %w", s.name, err)
		// The client may have gone; what was made goes all the same.
		undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		undone = true
		for ; i >= 0; i-- {
			if steps[i].undo == nil {
				continue
			}
			if undoErr := steps[i].undo(undoCtx); undoErr != nil {
				undone = false
				log.Error("undo of a failed start", "step", steps[i].name, "error", undoErr)
			}
		}
		return timings, undone, err
	}
	return timings, true, nil
}
