package daemon

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/keeper/session"
)

// A start does not go on while somebody holds an escrow and has not taken what would be lost with the keeper. It went
// on after a second before, and said nothing; so each case that wants an error or a word in the log failed.
func TestAStartWaitsForEscrow(t *testing.T) {
	const never = "never"
	for _, c := range []struct {
		name   string
		all    []any // what each holder's channel gets, at once or after the duration
		failed bool
		logged bool
	}{
		{name: "nobody holds an escrow"},
		{name: "taken", all: []any{nil, nil}},
		{name: "taken late", all: []any{20 * time.Millisecond}},
		{name: "berthd was killed", all: []any{session.ErrGone}, logged: true},
		{name: "one takes nothing", all: []any{never, nil}, logged: true},
		{name: "one takes nothing and another has gone", all: []any{session.ErrGone, never}, failed: true},
		{name: "nobody takes it", all: []any{never, never}, failed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h pending
			for _, what := range c.all {
				sent := make(chan error, 1)
				switch w := what.(type) {
				case nil:
					sent <- nil
				case error:
					sent <- w
				case time.Duration:
					time.AfterFunc(w, func() { sent <- nil })
				}
				h = append(h, sent)
			}
			limit := time.Minute
			if slices.Contains(c.all, any(never)) {
				limit = 10 * time.Millisecond
			}
			var log strings.Builder
			err := h.wait(slog.New(slog.NewTextHandler(&log, nil)), limit)
			if c.failed != errors.Is(err, errdefs.ErrUnavailable) || (err != nil) != c.failed {
				t.Errorf("error %v", err)
			}
			if logged := log.Len() > 0; logged != c.logged {
				t.Errorf("log: %q", log.String())
			}
		})
	}
}
