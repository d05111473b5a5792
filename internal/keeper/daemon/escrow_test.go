package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
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
		kind   error // nil: ErrUnavailable
	}{
		{name: "nobody holds an escrow"},
		{name: "taken", all: []any{nil, nil}},
		{name: "taken late", all: []any{20 * time.Millisecond}},
		{name: "berthd was killed", all: []any{session.ErrGone}, logged: true},
		{name: "one takes nothing", all: []any{never, nil}, logged: true},
		{name: "one takes nothing and another has gone", all: []any{session.ErrGone, never}, failed: true},
		{name: "nobody takes it", all: []any{never, never}, failed: true},
		{name: "it cannot be sent", all: []any{fmt.Errorf("%w: too large", protocol.ErrPacket), session.ErrGone},
			failed: true, kind: errdefs.ErrInvalidArgument},
		{name: "one finds no room", all: []any{nil, noRoom{unix.EMFILE}, session.ErrGone},
			failed: true, kind: errdefs.ErrResourceExhausted},
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
			if c.kind == nil {
				c.kind = errdefs.ErrUnavailable
			}
			if c.failed != errors.Is(err, c.kind) || (err != nil) != c.failed {
				t.Errorf("error %v", err)
			}
			if logged := log.Len() > 0; logged != c.logged {
				t.Errorf("log: %q", log.String())
			}
		})
	}
}

// TestARecordThatNoPacketCanHave: the start of its container fails, and the client, which holds the escrow of all
// others, stays connected. Seen to fail where the packet ends the session: the client connected again, and each time
// the keeper ended that connection too, as long as the container ran.
func TestARecordThatNoPacketCanHave(t *testing.T) {
	n := start(t)
	sessions := n.server.sessions.All()
	req := n.shell("large", "exec sleep 1000")
	req.Name = strings.Repeat("x", 70_000)
	if _, err := n.client.Run(n.ctx(), req); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a container with a record of 70 KB: %v", err)
	}
	if _, err := n.client.Status(n.ctx(), "large"); !errdefs.IsNotFound(err) {
		t.Errorf("the container that did not start: %v", err)
	}
	n.run(n.shell("c", "exec sleep 1000"))
	if now := n.server.sessions.All(); len(sessions) != 1 || !slices.Equal(now, sessions) {
		t.Errorf("the sessions were %v and are %v", sessions, now)
	}
}
