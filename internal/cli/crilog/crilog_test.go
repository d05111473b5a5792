package crilog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/logpart"
)

const stamp = "2026-01-31T12:00:00.000000000Z"

// logLine is a line of a log file, n seconds after noon.
func logLine(n int, stream, tag, text string) string {
	return fmt.Sprintf("2026-01-31T12:00:%02d.5Z %s %s %s\n", n, stream, tag, text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// read returns the lines that a log yields, as stream:text.
func read(t *testing.T, path string, options Options) []string {
	t.Helper()
	var lines []string
	err := Read(context.Background(), path, options, func(line *Line) error {
		lines = append(lines, string(line.Stream)+":"+string(line.Text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestLinesAreParsed(t *testing.T) {
	for _, c := range []struct {
		line    string
		text    string
		partial bool
		bad     bool
	}{
		{line: stamp + " stdout F hello there", text: "hello there"},
		{line: stamp + " stderr P half", text: "half", partial: true},
		{line: stamp + " stdout F:x:y tags", text: "tags"},
		{line: stamp + " stdout F ", text: ""},
		{line: stamp + " stdout F", text: ""},
		{line: stamp + " stdout F  two blanks", text: " two blanks"},
		{line: stamp + " stdin F x", bad: true},
		{line: stamp + " stdout Q x", bad: true},
		{line: "nonsense", bad: true},
		{line: "", bad: true},
	} {
		r, err := parse([]byte(c.line))
		if (err != nil) != c.bad || err == nil && (string(r.text) != c.text || r.partial != c.partial) {
			t.Errorf("%q: got %q %v, %v", c.line, r.text, r.partial, err)
		}
	}
}

// TestALineThatIsNoneOfALogHidesNoOther, and the first one is told.
func TestALineThatIsNoneOfALogHidesNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, logLine(1, "stdout", "F", "a")+"2026-01\n"+logLine(2, "stdout", "F", "b")+"\x00\x00\n"+
		"yesterday stdout F torn\n"+logLine(3, "stderr", "F", "c"))
	var told []string
	options := Options{Tail: -1, Since: time.Unix(1, 0), Bad: func(err error) { told = append(told, err.Error()) }}
	if got, want := read(t, path, options), []string{"stdout:a", "stdout:b", "stderr:c"}; !slices.Equal(got, want) {
		t.Errorf("read are %q, want %q", got, want)
	}
	if len(told) != 1 || !strings.Contains(told[0], `"2026-01"`) {
		t.Errorf("told is %q", told)
	}
}

func TestPartsAreJoinedPerStream(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, logLine(1, "stdout", "P", "a")+logLine(2, "stderr", "F", "x")+logLine(3, "stdout", "P", "b")+
		logLine(4, "stdout", "F", "c")+logLine(5, "stdout", "P", "unfinished"))
	want := []string{"stderr:x", "stdout:abc", "stdout:unfinished"}
	if got := read(t, path, Options{Tail: -1}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTailCountsWholeLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	long := strings.Repeat("x", 16<<10)
	for i := range 40 { // several blocks of the backward search
		write(t, path, logLine(i, "stdout", "P", long)+logLine(i, "stdout", "F", fmt.Sprint(i)))
	}
	for _, n := range []int{0, 1, 2, 7, 39, 40, 41, 1000} {
		got := read(t, path, Options{Tail: n})
		if len(got) != min(n, 40) {
			t.Errorf("tail %d: %d lines", n, len(got))
			continue
		}
		for i, line := range got {
			if want := "stdout:" + long + fmt.Sprint(40-len(got)+i); line != want {
				t.Errorf("tail %d: line %d is not whole: %d bytes", n, i, len(line))
			}
		}
	}
	write(t, path, logLine(50, "stdout", "P", "open"))
	if got := read(t, path, Options{Tail: 1}); len(got) != 2 || got[1] != "stdout:open" {
		t.Errorf("with an unfinished line: %d lines", len(got))
	}
}

func TestSinceLeavesOutWhatIsOlder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	for i := range 5 {
		write(t, path, logLine(i, "stdout", "F", fmt.Sprint(i)))
	}
	since := time.Date(2026, 1, 31, 12, 0, 3, 0, time.UTC)
	if got := read(t, path, Options{Tail: -1, Since: since}); !slices.Equal(got, []string{"stdout:3", "stdout:4"}) {
		t.Errorf("got %q", got)
	}
}

func TestFollowingGoesThroughRotationToTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, logLine(1, "stdout", "F", "one"))
	ended := make(chan struct{})
	lines := make(chan string, 100)
	done := make(chan error, 1)
	go func() {
		done <- Read(context.Background(), path, Options{Tail: -1, Follow: true, Ended: ended}, func(line *Line) error {
			lines <- string(line.Text)
			return nil
		})
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		case <-time.After(40 * time.Second):
			t.Fatalf("no %q", want)
		}
	}
	expect("one")
	write(t, path, logLine(2, "stdout", "F", "two"))
	expect("two")
	write(t, path, logLine(3, "stdout", "P", "thr")) // its rest is in the next file
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, path+".1", logLine(4, "stdout", "P", "e")) // until the runtime reopens the log it writes to the old file
	write(t, path, logLine(5, "stdout", "F", "e")+logLine(6, "stdout", "F", "four"))
	expect("three")
	expect("four")
	write(t, path, logLine(7, "stdout", "F", "last"))
	close(ended)
	expect("last")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestNoFileIsSkippedIfALogIsRotatedSeveralTimes before it is read again, and what is left is read if the file that was
// open has been removed.
func TestNoFileIsSkippedIfALogIsRotatedSeveralTimes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	at := time.Now().Add(-time.Hour)
	rotate := func() {
		t.Helper()
		at = at.Add(time.Second)
		part := logpart.Name(path, at)
		if err := errors.Join(os.Rename(path, part), os.Chtimes(part, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	for _, removed := range []int{0, 1, 2} {
		write(t, path, logLine(1, "stdout", "F", "1"))
		ended := make(chan struct{})
		reader, err := Open(path, Options{Tail: -1, Follow: true, Ended: ended})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"1"} // of the file that is open
		for i := 2; i <= 5; i++ {
			rotate()
			write(t, path, logLine(i, "stdout", "F", fmt.Sprint(i)))
			if i > removed {
				want = append(want, fmt.Sprint(i))
			}
		}
		parts, err := filepath.Glob(path + ".*")
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts[len(parts)-4 : len(parts)-4+removed] {
			if err := os.Remove(part); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		time.AfterFunc(300*time.Millisecond, func() { close(ended) })
		err = reader.Run(t.Context(), func(line *Line) error { got = append(got, string(line.Text)); return nil })
		reader.Close()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("with %d files removed: %q, %v, want %q", removed, got, err, want)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALogThatIsRemovedIsReadToItsEnd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	write(t, path, logLine(1, "stdout", "F", "here"))
	ended := make(chan struct{})
	reader, err := Open(path, Options{Tail: -1, Follow: true, Ended: ended})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	close(ended)
	var lines int
	if err := reader.Run(context.Background(), func(*Line) error { lines++; return nil }); err != nil || lines != 1 {
		t.Fatalf("%d lines, %v", lines, err)
	}
}

func TestFollowingEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := Read(ctx, filepath.Join(t.TempDir(), "none"), Options{Tail: -1, Follow: true}, func(*Line) error { return nil })
	if err != context.DeadlineExceeded {
		t.Fatal(err)
	}
}

func TestALineWithoutEndTakesBoundedMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	part := strings.Repeat("y", 16<<10)
	for range 200 {
		write(t, path, logLine(1, "stdout", "P", part))
	}
	write(t, path, logLine(1, "stdout", "F", ""))
	total, longest, continued := 0, 0, 0
	err := Read(context.Background(), path, Options{Tail: -1}, func(line *Line) error {
		total += len(line.Text)
		longest = max(longest, len(line.Text))
		if line.Continued {
			continued++
		}
		return nil
	})
	if err != nil || total != 200*len(part) || longest > maxLine+len(part) || continued == 0 {
		t.Fatalf("%d bytes, %d at a time, %d pieces, %v", total, longest, continued, err)
	}
}
