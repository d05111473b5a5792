package liblog

import (
	"log/slog"
	"os"
	"time"

	"golang.org/x/term"
)

// Stderr is a program's own log, on its standard error. level is debug, info, warn or error. format is text, json, or
// auto: text where the standard error is a terminal.
func Stderr(level, format string) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: least}
	if format == "text" || format == "auto" && term.IsTerminal(int(os.Stderr.Fd())) {
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
}

// Milliseconds is a duration as a log line has it: a number, to the microsecond, under a key that ends with _ms.
// A time.Duration would be text with changing units in one format of the log, and nanoseconds in the other.
func Milliseconds(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}
