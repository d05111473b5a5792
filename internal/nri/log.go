package nri

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
)

// library gives the lines of NRI's library to berthd's log. What it says at its level of information, of each plugin's
// connection and each request, is for debugging.
type library struct{ log *slog.Logger }

func (l library) Debugf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelDebug, format, args)
}

func (l library) Infof(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelDebug, format, args)
}

func (l library) Warnf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelWarn, format, args)
}

func (l library) Errorf(ctx context.Context, format string, args ...any) {
	l.say(ctx, slog.LevelError, format, args)
}

func (l library) say(ctx context.Context, level slog.Level, format string, args []any) {
	if l.log.Enabled(ctx, level) {
		l.log.Log(ctx, level, "NRI: "+fmt.Sprintf(format, args...))
	}
}

// observer learns from the library how many plugins there are, which of them joins, and how their calls end.
type observer struct{ *Plugins }

func (o observer) UpdatePluginCount(count int) {
	o.count.Store(int64(count))
	o.cfg.Metrics.NRIPlugins(count)
}

func (o observer) RecordPluginInvocation(plugin, operation string, err error) {
	if operation == "Synchronize" && err == nil {
		o.log.Info("an NRI plugin has joined", "plugin", plugin)
	}
	if err == nil {
		o.noteAnswer(plugin)
		return
	}
	o.cfg.Metrics.NRIError(plugin, operation)
	if operation != "Synchronize" {
		o.noteFailure(plugin, err)
	}
}

func (o observer) RecordPluginLatency(plugin, operation string, took time.Duration) {
	o.cfg.Metrics.NRI(plugin, operation, took)
}

// RecordPluginAdjustments warns that evictions have no effect: the library does not pass them to the runtime.
func (o observer) RecordPluginAdjustments(plugin, _ string, _ *adaptation.ContainerAdjustment, _, evictions int) {
	if evictions > 0 {
		o.log.Warn("an NRI plugin wants containers to be evicted, which NRI's library does not hand on", "plugin", plugin)
	}
}
