package stream

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// LogLibraries sends what the streaming libraries log to a logger. They log through klog, which is one for the process
// and must be set before anything uses it. They call every failed command and lost client an error:
// here those are for debugging.
func LogLibraries(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(debugging{log.Handler()}))
}

// debugging is a handler that makes every record one of level Debug.
type debugging struct{ slog.Handler }

func (h debugging) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

func (h debugging) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

func (h debugging) WithAttrs(attrs []slog.Attr) slog.Handler {
	return debugging{h.Handler.WithAttrs(attrs)}
}
func (h debugging) WithGroup(name string) slog.Handler { return debugging{h.Handler.WithGroup(name)} }
