package audit

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func openTest(t *testing.T) *Log {
	t.Helper()
	l, err := Open(filepath.Join(t.TempDir(), "audit"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// subscribe begins a subscription, and returns when it is there.
func subscribe(t *testing.T, l *Log, ctx context.Context, take func([]byte) error) (ended chan error) {
	t.Helper()
	ended = make(chan error, 1)
	go func() { ended <- l.Subscribe(ctx, take) }()
	for there := false; !there; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		there = len(l.subscribers) > 0
		l.mu.Unlock()
	}
	return ended
}

func TestASubscriberGetsEachLine(t *testing.T) {
	l := openTest(t)
	got := make(chan string, 2)
	ended := subscribe(t, l, t.Context(), func(line []byte) error {
		got <- string(line)
		return nil
	})
	end := l.Begin(t.Context(), Operation{Kind: Exec, Pod: "p", Command: []string{"ls"}})
	end(3, nil)
	if line := <-got; !strings.Contains(line, `"event":"begin"`) || !strings.HasSuffix(line, "}") {
		t.Errorf("%q", line)
	}
	if line := <-got; !strings.Contains(line, `"exit_code":3`) {
		t.Errorf("%q", line)
	}
	l.EndSubscriptions()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := l.Subscribe(t.Context(), nil); err != nil {
		t.Errorf("after the end: %v", err)
	}
}

// TestNoOperationWaitsForASubscriber: one that takes nothing is cut off.
func TestNoOperationWaitsForASubscriber(t *testing.T) {
	l := openTest(t)
	release := make(chan struct{})
	ended := subscribe(t, l, t.Context(), func([]byte) error {
		<-release
		return nil
	})
	for range backlog {
		l.Begin(t.Context(), Operation{Kind: Exec})(0, nil)
	}
	close(release)
	if err := <-ended; !errdefs.IsResourceExhausted(err) {
		t.Error(err)
	}
	if len(l.subscribers) != 0 {
		t.Error("the subscriber is still known")
	}
}

// TestLongLinesOfASubscriberAreBounded: commands of 32 KiB reach the bound of bytes long before that of lines. One that
// takes its lines gets more than the bound.
func TestLongLinesOfASubscriberAreBounded(t *testing.T) {
	l := openTest(t)
	long := Operation{Kind: Exec, Command: []string{strings.Repeat("x", maxCommand-1)}}
	taken := make(chan struct{})
	ended := subscribe(t, l, t.Context(), func([]byte) error {
		taken <- struct{}{}
		return nil
	})
	const enough = backlogBytes/maxCommand + 2
	for range 2 * enough {
		end := l.Begin(t.Context(), long)
		<-taken
		end(0, nil)
		<-taken
	}
	for range enough {
		l.Begin(t.Context(), long)
	}
	l.mu.Lock()
	left := len(l.subscribers)
	l.mu.Unlock()
	if left != 0 {
		t.Error("a subscriber with more than the bound of bytes is still known")
	}
	l.EndSubscriptions() // ends one that was not cut off
	for {
		select {
		case <-taken:
		case err := <-ended:
			if !errdefs.IsResourceExhausted(err) {
				t.Error(err)
			}
			return
		}
	}
}

func TestASubscriptionEnds(t *testing.T) {
	l := openTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := subscribe(t, l, ctx, nil)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || len(l.subscribers) != 0 {
		t.Errorf("%v, %d left", err, len(l.subscribers))
	}
	ended = subscribe(t, l, t.Context(), nil)
	off, err := l.Reopen("")
	if err != nil {
		t.Fatal(err)
	}
	off()
	if err := <-ended; !errdefs.IsFailedPrecondition(err) {
		t.Errorf("turned off: %v", err)
	}
	none, err := Open("", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for name, off := range map[string]*Log{"no file": none, "no log": nil} {
		if err := off.Subscribe(t.Context(), nil); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "audit.file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
