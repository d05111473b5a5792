package logview

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/cli/crilog"
)

// written is a log of n lines, the first at a time and the others a second apart each.
func written(t *testing.T, from, n int) string {
	t.Helper()
	var text strings.Builder
	for i := range n {
		at := time.Unix(int64(from+2*i), 0).UTC().Format("2006-01-02T15:04:05.000000000Z07:00")
		fmt.Fprintf(&text, "%s stdout F %d\n", at, from+2*i)
	}
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLinesOfSeveralLogsAreSortedByTime(t *testing.T) {
	var out bytes.Buffer
	p := &Printer{Out: &out}
	logs := []Log{
		{Name: p.Name("even"), Path: written(t, 2, 3), Options: crilog.Options{Tail: -1}},
		{Name: p.Name("o"), Path: written(t, 1, 4), Options: crilog.Options{Tail: -1}},
	}
	if err := p.Show(t.Context(), logs); err != nil {
		t.Fatal(err)
	}
	want := "o    | 1\neven | 2\no    | 3\neven | 4\no    | 5\neven | 6\no    | 7\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// TestALogThatCannotBeReadHidesNoOther: its error comes after the others' lines.
func TestALogThatCannotBeReadHidesNoOther(t *testing.T) {
	var out bytes.Buffer
	p := &Printer{Out: &out}
	logs := []Log{
		{Name: p.Name("gone"), Path: filepath.Join(t.TempDir(), "none"), Options: crilog.Options{Tail: -1}},
		{Name: p.Name("here"), Path: written(t, 1, 2), Options: crilog.Options{Tail: -1}},
	}
	err := p.Show(t.Context(), logs)
	if err == nil || !strings.Contains(err.Error(), "gone") || strings.Count(out.String(), "here | ") != 2 {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// full is an output that has no room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestOutputThatCannotBeWrittenEndsFollowing: also of logs to which nothing more is written. Seen to fail where only
// the log of the line that could not be written ended.
func TestOutputThatCannotBeWrittenEndsFollowing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	p := &Printer{Out: full{}}
	follow := crilog.Options{Tail: -1, Follow: true}
	logs := []Log{
		{Name: p.Name("quiet"), Path: written(t, 1, 0), Options: follow},
		{Name: p.Name("here"), Path: written(t, 1, 1), Options: follow},
	}
	if err := p.Show(ctx, logs); !errors.Is(err, syscall.ENOSPC) || ctx.Err() != nil {
		t.Errorf("%v; its time is over: %v", err, ctx.Err())
	}
}

// TestALogThatCannotBeReadLeavesFollowedOnesAlone: its error comes once the others have ended.
func TestALogThatCannotBeReadLeavesFollowedOnesAlone(t *testing.T) {
	var out bytes.Buffer
	p := &Printer{Out: &out}
	ended := make(chan struct{})
	follow := crilog.Options{Tail: -1, Follow: true, Ended: ended}
	time.AfterFunc(100*time.Millisecond, func() { close(ended) })
	logs := []Log{
		{Name: p.Name("gone"), Path: filepath.Join(t.TempDir(), "no", "directory"), Options: follow},
		{Name: p.Name("here"), Path: written(t, 1, 2), Options: follow},
	}
	err := p.Show(t.Context(), logs)
	if !errors.Is(err, os.ErrNotExist) || strings.Count(out.String(), "here | ") != 2 {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// interrupting ends a context at the first write.
type interrupting struct{ cancel context.CancelFunc }

func (w *interrupting) Write(p []byte) (int, error) { w.cancel(); return len(p), nil }

// TestCtrlCEndsALongMerge: at once, and not when a reader that has gone takes a line.
func TestCtrlCEndsALongMerge(t *testing.T) {
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		p := &Printer{Out: &interrupting{cancel}}
		logs := []Log{
			{Name: p.Name("a"), Path: written(t, 1, 50), Options: crilog.Options{Tail: -1}},
			{Name: p.Name("b"), Path: written(t, 2, 50), Options: crilog.Options{Tail: -1}},
		}
		ended := make(chan error, 1)
		go func() { ended <- p.Show(ctx, logs) }()
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("it goes on")
		}
	}
}
