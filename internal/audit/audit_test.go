package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/quota/quotatest"
)

func lines(t *testing.T, path string) []map[string]any {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]any
	for text := range bytes.Lines(data) {
		var one map[string]any
		if err := json.Unmarshal(text, &one); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		all = append(all, one)
	}
	return all
}

func open(t *testing.T, path string) *Log {
	t.Helper()
	l, err := Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestAnOperationIsALineWhenItBeginsAndOneWhenItEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l := open(t, path)
	ctx := WithPeer(t.Context(), (&Peer{PID: 7, UID: 1, Program: "/bin/x"}).At("10.0.0.1:5"))
	end := l.Begin(ctx, Operation{Kind: Exec, Pod: "p", Container: "c", Command: []string{"sh", "-c", "a\nb"}, User: "1"})
	failed := l.Begin(context.Background(), Operation{Kind: PortForward, Port: 80})
	end(3, nil)
	failed(-1, errors.New("nobody listens"))
	got := lines(t, path)
	if len(got) != 5 {
		t.Fatalf("there are %d lines: %v", len(got), got)
	}
	begin, last := got[1], got[3]
	peer, _ := begin["peer"].(map[string]any)
	if begin["event"] != "begin" || begin["operation"] != Exec || begin["pod"] != "p" ||
		len(begin["command"].([]any)) != 3 || peer["pid"] != 7.0 ||
		peer["uid"] != 1.0 || peer["program"] != "/bin/x" || peer["client"] != "10.0.0.1:5" {
		t.Errorf("the begin is %v", begin)
	}
	if last["event"] != "end" || last["operation_id"] != begin["operation_id"] || last["exit_code"] != 3.0 ||
		last["took_ms"] == nil || last["container"] != "c" || last["command"] != nil {
		t.Errorf("the end is %v", last)
	}
	if f := got[4]; f["error"] != "nobody listens" || f["exit_code"] != nil || f["operation_id"] == begin["operation_id"] {
		t.Errorf("the end of one that failed is %v", f)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
}

func TestWithoutAFileNothingIsWritten(t *testing.T) {
	var none *Log
	none.Begin(t.Context(), Operation{Kind: Exec})(0, nil)
	l := open(t, "")
	l.Begin(t.Context(), Operation{Kind: Exec})(0, nil)
	if none.On() || l.On() {
		t.Error("a log without a file is on")
	}
}

func TestARenamedFileIsOpenedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l := open(t, path)
	end := l.Begin(t.Context(), Operation{Kind: Exec})
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	change, err := l.Reopen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Begin(t.Context(), Operation{Kind: Attach}) // not yet
	change()
	end(0, nil)
	if old, now := lines(t, path+".1"), lines(t, path); len(old) != 3 || len(now) != 1 || now[0]["event"] != "end" {
		t.Errorf("the old file has %v, the new %v", old, now)
	}
	if _, err := l.Reopen(filepath.Join(path, "below")); err == nil {
		t.Error("a file below a file is opened")
	}
	l.Begin(t.Context(), Operation{Kind: Exec})
	if now := lines(t, path); len(now) != 2 {
		t.Errorf("after a change that failed the file has %v", now)
	}
}

func TestOnlyAFileOfItsOwnIsWrittenTo(t *testing.T) {
	dir := t.TempDir()
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, link, dir, "/dev/null"} {
		if _, err := Open(path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestALongCommandIsCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l := open(t, path)
	command := []string{"sh", strings.Repeat("x", maxCommand), "last"}
	l.Begin(t.Context(), Operation{Kind: Exec, Command: command})
	one := lines(t, path)[1]
	if got := one["command"].([]any); len(got) != 2 || len(got[1].(string)) != maxCommand-3 || one["command_cut"] != true {
		t.Errorf("the command has %d arguments, cut %v", len(got), one["command_cut"])
	}
	if len(command) != 3 || len(command[1]) != maxCommand {
		t.Error("the command itself is cut")
	}
}

// A full disk loses lines, and not what others want of containers. A line of which only a part was written is no part
// of the next.
func TestAFullDiskLosesLinesAndNoMore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	var said bytes.Buffer
	l, err := Open(path, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	whole := l.file.out
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	info, err := whole.Stat()
	if err != nil {
		t.Fatal(err)
	}
	// A write beyond the limit is short, and the next one fails.
	small := limit
	small.Cur = uint64(info.Size()) + 20
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	end := l.Begin(t.Context(), Operation{Kind: Exec})
	l.Begin(t.Context(), Operation{Kind: Exec})
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	end(0, nil)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	texts := strings.Split(strings.TrimSpace(string(data)), "\n")
	var last map[string]any
	err = json.Unmarshal([]byte(texts[len(texts)-1]), &last)
	if err != nil || len(texts) != 3 || last["event"] != "end" {
		t.Errorf("the file has %q: %v", data, err)
	}
	if log := said.String(); strings.Count(log, "are lost") != 1 || strings.Count(log, "written again") != 1 ||
		!strings.Contains(log, path) {
		t.Errorf("berthd logs\n%s", log)
	}
}

// TestNoClientMakesALineOfAnyLength: many arguments without a character, and a user with a long name, are cut as long
// arguments are. Seen to fail where only the bytes of arguments are counted.
func TestNoClientMakesALineOfAnyLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l := open(t, path)
	l.Begin(t.Context(), Operation{Kind: Exec, Command: make([]string, 1<<20)})(0, nil)
	l.Begin(t.Context(), Operation{Kind: Exec, User: strings.Repeat("x", 1<<20), Command: []string{"sh"}})(0, nil)
	l.Begin(t.Context(), Operation{Kind: Exec})(0, errors.New(strings.Repeat("x", 1<<20)))
	info, err := os.Stat(path)
	if err != nil || info.Size() > 8*maxCommand {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	all := lines(t, path)
	if all[1]["command_cut"] != true || all[3]["command_cut"] != true {
		t.Errorf("nothing says that it was cut: %v, %v", all[1]["command_cut"], all[3]["command_cut"])
	}
}

// TestADiskThatDoesNotAnswerHoldsNobodyUp for long, and loses nothing of what may wait. It was seen to hold up all
// operations, and the end of berthd.
func TestADiskThatDoesNotAnswerHoldsNobodyUp(t *testing.T) {
	asroot.Need(t, "a file system that is frozen")
	mount := quotatest.Mount(t, "ext4", "defaults")
	path := filepath.Join(mount, "audit")
	var said bytes.Buffer
	l, err := Open(path, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	release := quotatest.Freeze(t, mount)
	defer release()
	const operations = maxWaiting // the lines of half of them are lost
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range operations {
			l.Begin(t.Context(), Operation{Kind: Exec})(0, nil)
		}
		if !l.On() {
			t.Error("nothing is written down any more")
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * patience):
		release()
		t.Fatal("operations wait for the disk")
	}
	next := filepath.Join(t.TempDir(), "audit")
	change, err := l.Reopen(next)
	if err != nil {
		t.Fatal(err)
	}
	change()
	l.Begin(t.Context(), Operation{Kind: Attach})
	if got := lines(t, next); len(got) != 1 || got[0]["operation"] != Attach {
		t.Errorf("the next file has %v", got)
	}
	last := l.file
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	<-last.ended
	release()
	for end := time.Now().Add(20 * patience); ; time.Sleep(10 * time.Millisecond) {
		// The daemon's line, the one that hangs, and those that wait.
		if got := lines(t, path); len(got) == 2+maxWaiting {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the file has %d lines", len(got))
		}
	}
	if log := said.String(); strings.Count(log, "does not answer") != 1 || strings.Count(log, "are lost") != 1 {
		t.Errorf("berthd logs\n%s", log)
	}
}
