package liblog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestADurationIsANumberOfMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]float64{0: 0, 1234567: 1.234, 2 * time.Second: 2000, -time.Millisecond: -1} {
		if got := Milliseconds(d); got != want {
			t.Errorf("%v: %v, want %v", d, got, want)
		}
	}
}

// TestALogChangesWithAllThatWereMadeFromIt: parts keep loggers with their pod's name from the day that they were made.
// Seen to fail with the handler that With was called on.
func TestALogChangesWithAllThatWereMadeFromIt(t *testing.T) {
	var out bytes.Buffer
	b := &base{out: &out}
	if err := b.change("info", "json"); err != nil {
		t.Fatal(err)
	}
	log := slog.New(&changeable{base: b})
	old := log.With("pod", "a").WithGroup("g").With("x", 1)
	step := func(level, format string, logged ...string) {
		t.Helper()
		if err := b.change(level, format); err != nil {
			t.Fatal(err)
		}
		out.Reset()
		old.Debug("debug")
		old.Info("info", "y", 2)
		log.Warn("warn")
		got := out.String()
		for _, want := range logged {
			if !strings.Contains(got, want) {
				t.Errorf("%s, %s: logged %q without %q", level, format, got, want)
			}
		}
		if n := strings.Count(got, "\n"); n != len(logged) {
			t.Errorf("%s, %s: logged %q", level, format, got)
		}
	}
	step("info", "auto", `"msg":"info","pod":"a","g":{"x":1,"y":2}}`, `"msg":"warn"}`)
	step("debug", "text", "msg=debug pod=a g.x=1", "msg=info pod=a g.x=1 g.y=2", "msg=warn")
	step("warn", "json", `"msg":"warn"}`)
	if err := b.change("loud", "json"); err == nil {
		t.Error("a level that is none is taken")
	}
	out.Reset()
	if log.Info("info"); out.Len() > 0 {
		t.Errorf("after a wrong level %q is logged", out.String())
	}
}
