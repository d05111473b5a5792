package health

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hanging is a check that does not answer, whatever its context says, while it is told to hang.
type hanging struct {
	gate    atomic.Pointer[chan struct{}]
	running atomic.Int32
	begun   atomic.Int32
}

func (h *hanging) hang()   { gate := make(chan struct{}); h.gate.Store(&gate) }
func (h *hanging) answer() { close(*h.gate.Swap(nil)) }

func (h *hanging) run(context.Context) error {
	h.begun.Add(1)
	h.running.Add(1)
	defer h.running.Add(-1)
	if gate := h.gate.Load(); gate != nil {
		<-*gate
	}
	return nil
}

// TestACheckThatHangsIsNotPiledUp: a disk that is stuck for hours would cost a goroutine, and a thread, each time. Seen
// to fail with a run for each question, and with the answer of the earlier run taken for that of the later.
func TestACheckThatHangsIsNotPiledUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hanging
		h.hang()
		c := New(Check{"disk", h.run}, Check{"list", func(context.Context) error { return nil }})
		for range 5 {
			r := c.Run(t.Context(), time.Second)
			if len(r) != 2 || r[0].Err == nil || r[1].Err != nil || len(Failed(r)) != 1 {
				t.Fatalf("results %v", r)
			}
		}
		if n := h.running.Load(); n != 1 {
			t.Errorf("%d runs are under way", n)
		}
		if r := c.Run(t.Context(), time.Second); !strings.Contains(r[0].Err.Error(), "after 6s") {
			t.Errorf("after six seconds: %v", r[0].Err)
		}
		time.AfterFunc(500*time.Millisecond, h.answer)
		if r := Failed(c.Run(t.Context(), time.Second)); len(r) > 0 {
			t.Errorf("it answers again, and %v", r)
		}
		if n := h.begun.Load(); n != 2 {
			t.Errorf("it was run %d times: what an earlier run found is no answer to a later question", n)
		}
	})
}

// TestTheWatchdogBearsADiskThatIsSlowOnce, and is told nothing while a check hangs. With a watchdog of 120 s the checks
// run every 30 s. Seen to fail with alive called whatever the checks say.
func TestTheWatchdogBearsADiskThatIsSlowOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period, limit = 30 * time.Second, 120 * time.Second
		var h hanging
		var out bytes.Buffer
		last, longest := time.Now(), time.Duration(0)
		alive := func() { longest, last = max(longest, time.Since(last)), time.Now() }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			New(Check{"record", h.run}).Watch(ctx, period, alive, slog.New(slog.NewTextHandler(&out, nil)))
		}()
		// What the watch does at the moment to which is slept is done, too, and is not seen half.
		sleep := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		sleep(10 * period)
		if longest > period {
			t.Errorf("while all is well there was nothing for %s", longest)
		}
		for _, slow := range []time.Duration{time.Second, 29 * time.Second, 61 * time.Second, 80 * time.Second} {
			longest = 0
			h.hang()
			sleep(slow)
			h.answer()
			sleep(5 * period)
			if longest >= limit {
				t.Errorf("a disk that was slow for %s once: nothing for %s", slow, longest)
			}
		}
		h.hang()
		sleep(2 * limit)
		if since := time.Since(last); since < limit {
			t.Errorf("a disk that hangs: systemd was told that all is well %s ago", since)
		}
		if n := strings.Count(out.String(), "check=record"); n == 0 || n > 4 {
			t.Errorf("the log names the check %d times:\n%s", n, out.String())
		}
		h.answer()
		sleep(2 * period)
		if since := time.Since(last); since > period {
			t.Errorf("it answers again, and there was nothing for %s", since)
		}
		if !strings.Contains(out.String(), "pass again") {
			t.Errorf("the log does not say that it is over:\n%s", out.String())
		}
		cancel()
		<-done
	})
}

func TestAFailureIsToldWithItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := New(Check{"keeper", func(context.Context) error { return errors.New("connection refused") }},
			Check{"list", func(context.Context) error { return nil }})
		c.Watch(ctx, time.Second, func() { t.Error("was told to be well") }, slog.New(slog.NewTextHandler(&out, nil)))
		got := out.String()
		if !strings.Contains(got, `check=keeper error="connection refused"`) || strings.Count(got, "\n") != 1 {
			t.Errorf("in a minute the log has\n%s", got)
		}
	})
}
