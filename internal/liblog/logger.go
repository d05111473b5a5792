package liblog

import (
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

// Stderr is a program's own log, on its standard error. level is debug, info, warn or error. format is text, json, or
// auto: text where the standard error is a terminal.
func Stderr(level, format string) (*slog.Logger, error) {
	log, _, err := Changeable(level, format)
	return log, err
}

// Changeable is Stderr with a function that gives the log, and all that were derived from it, another level and format.
func Changeable(level, format string) (log *slog.Logger, change func(level, format string) error, err error) {
	base := &base{out: os.Stderr, terminal: term.IsTerminal(int(os.Stderr.Fd()))}
	if err := base.change(level, format); err != nil {
		return nil, nil, err
	}
	return slog.New(&changeable{base: base}), base.change, nil
}

// base is what all loggers that were derived from one another write to.
type base struct {
	out      io.Writer
	terminal bool
	handler  atomic.Pointer[slog.Handler]
}

func (b *base) change(level, format string) error {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return err
	}
	options := &slog.HandlerOptions{Level: least}
	var h slog.Handler = slog.NewJSONHandler(b.out, options)
	if format == "text" || format == "auto" && b.terminal {
		h = slog.NewTextHandler(b.out, options)
	}
	b.handler.Store(&h)
	return nil
}

// changeable is the handler of a logger: that of its base with what With and WithGroup have added.
type changeable struct {
	base  *base
	added []func(slog.Handler) slog.Handler
	made  atomic.Pointer[made]
}

// made is the handler that was made from one of the base's.
type made struct {
	of   *slog.Handler
	with slog.Handler
}

func (c *changeable) now() slog.Handler {
	of := c.base.handler.Load()
	if m := c.made.Load(); m != nil && m.of == of {
		return m.with
	}
	with := *of
	for _, add := range c.added {
		with = add(with)
	}
	c.made.Store(&made{of, with})
	return with
}

func (c *changeable) Enabled(ctx context.Context, l slog.Level) bool {
	return (*c.base.handler.Load()).Enabled(ctx, l)
}

func (c *changeable) Handle(ctx context.Context, r slog.Record) error { return c.now().Handle(ctx, r) }

func (c *changeable) WithAttrs(attrs []slog.Attr) slog.Handler {
	return c.with(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

func (c *changeable) WithGroup(name string) slog.Handler {
	return c.with(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (c *changeable) with(add func(slog.Handler) slog.Handler) slog.Handler {
	return &changeable{base: c.base, added: append(slices.Clip(c.added), add)}
}

// Milliseconds is a duration as a log line has it: a number, to the microsecond, under a key that ends with _ms.
// A time.Duration would be text with changing units in one format of the log, and nanoseconds in the other.
func Milliseconds(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}
