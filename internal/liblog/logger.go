package liblog

import (
	"log/slog"
	"os"

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
