package client_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestLogFormat(t *testing.T) {
	n := start(t)
	long := strings.Repeat("x", 40000)
	if err := os.WriteFile(n.root+"/tmp/long", []byte(long+"\nend\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	n.run(n.request("a", "sh", "-c", "cat /tmp/long; echo error >&2; printf unfinished"))
	n.ended("a")
	var outs, errs []record
	for _, r := range n.records(n.logPath("a")) {
		if r.time.Before(before.Add(-time.Second)) || r.time.After(time.Now().Add(time.Second)) {
			t.Errorf("record from %v", r.time)
		}
		if r.stream == "stdout" {
			outs = append(outs, r)
		} else {
			errs = append(errs, r)
		}
	}
	want := []struct {
		tag string
		n   int
	}{{"P", 16384}, {"P", 16384}, {"F", 40000 - 2*16384}, {"F", 3}, {"P", len("unfinished")}}
	if len(outs) != len(want) {
		t.Fatalf("%d records of stdout, want %d", len(outs), len(want))
	}
	for i, w := range want {
		if outs[i].tag != w.tag || len(outs[i].content) != w.n {
			t.Errorf("record %d: %s with %d bytes, want %s with %d", i, outs[i].tag, len(outs[i].content), w.tag, w.n)
		}
	}
	if len(errs) != 1 || errs[0].content != "error" || errs[0].tag != "F" {
		t.Errorf("stderr: %+v", errs)
	}
	if st, err := os.Stat(n.logPath("a")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("log's mode: %v %v", st.Mode(), err)
	}
}

func TestLineWithoutEndIsInLogSoon(t *testing.T) {
	n := start(t)
	n.run(n.request("a", "sh", "-c", "printf waiting; sleep 1000"))
	n.until("the line is in the log", func() bool {
		r := n.records(n.logPath("a"))
		return len(r) == 1 && r[0].tag == "P" && r[0].content == "waiting"
	})
	n.delete("a")
	r := n.records(n.logPath("a"))
	if len(r) != 1 {
		t.Errorf("the line got an end that the program never wrote: %+v", r)
	}
}

func TestReopenUnderLoadLosesNothing(t *testing.T) {
	n := start(t)
	const lines = 300000
	n.run(n.request("a", "sh", "-c", fmt.Sprintf("seq 1 %d; for i in 1 2 3; do echo e$i >&2; done", lines)))
	var files []string
	for i := range 20 {
		rotated := fmt.Sprintf("%s.%d", n.logPath("a"), i)
		if err := os.Rename(n.logPath("a"), rotated); err != nil {
			t.Fatal(err)
		}
		if err := n.client.ReopenLog(n.ctx(), "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(n.logPath("a")); err != nil {
			t.Fatalf("not open after ReopenLog: %v", err)
		}
		files = append(files, rotated)
		time.Sleep(3 * time.Millisecond)
	}
	n.ended("a")
	n.sequence(lines, append(files, n.logPath("a"))...)
}

// sequence checks that stdout in these files is what seq printed.
func (n *node) sequence(lines int, files ...string) {
	n.Helper()
	next := 1
	for line := range strings.Lines(n.output("stdout", files...)) {
		if line != fmt.Sprintf("%d\n", next) {
			n.Fatalf("line %q, want %d", line, next)
		}
		next++
	}
	if next != lines+1 {
		n.Fatalf("%d lines, want %d", next-1, lines)
	}
}

func TestHundredMegabytes(t *testing.T) {
	n := start(t)
	n.run(n.request("a", "sh", "-c",
		"yes "+strings.Repeat("0123456789", 7)+" | head -c 104857600"))
	n.ended("a")
	total := 0
	for _, r := range n.records(n.logPath("a")) {
		total += len(r.content)
		if r.tag == "F" {
			total++
		}
	}
	// head cuts the last line, which gets its end in the log.
	if total != 104857600 && total != 104857601 {
		t.Errorf("%d bytes", total)
	}
}

func TestUnwritableLogDoesNotStopContainer(t *testing.T) {
	n := start(t)
	dir := n.dir + "-no-such-directory"
	req := n.request("a", "sh", "-c", "seq 1 100000; exit 0")
	req.LogPath = dir + "/log"
	n.run(req)
	if st := n.ended("a"); st.ExitCode != 0 {
		t.Errorf("status %+v", st)
	}
	link := n.request("b", "echo", "secret")
	if err := os.Symlink(n.dir+"-target", link.LogPath); err != nil {
		t.Fatal(err)
	}
	n.run(link)
	n.ended("b")
	if _, err := os.Stat(n.dir + "-target"); err == nil {
		t.Error("a link in place of the log was followed")
	}
}
