package client_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/loglimit"
	"berth/internal/logpart"
)

// parts are all files of a container's log, the oldest first.
func (n *node) parts(id string) (paths []string) {
	n.Helper()
	path := n.logPath(id)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		n.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, name := range logpart.Of(filepath.Base(path), names) {
		paths = append(paths, filepath.Join(filepath.Dir(path), name))
	}
	return append(paths, path)
}

// TestLimitsOfLogsOutliveTheKeeper that is killed at any moment, or replaced in place: no file is larger than it may
// be, no line is lost or doubled, and what is dropped is counted to the line.
func TestLimitsOfLogsOutliveTheKeeper(t *testing.T) {
	n := start(t)
	const lines, size = 600000, 256 << 10
	// A write to the log takes a fraction of a millisecond, and every second one or so rotates it.
	const stop = "; until [ -e /tmp/stop ]; do usleep 1000; done"
	rotated := n.request("rotated", "sh", "-c", fmt.Sprintf("seq 1 %d", lines)+stop)
	rotated.LogLimits = loglimit.Limits{MaxSize: size, MaxFiles: 1000}
	held := n.request("held", "sh", "-c", "seq 1 20000"+stop)
	held.LogLimits = loglimit.Limits{MaxSize: size, MaxFiles: 1000, Rate: 512 << 10, Burst: 4 << 10, Over: loglimit.Wait}
	dropped := n.request("dropped", "sh", "-c",
		"while [ ! -e /tmp/stop ]; do seq 1 1000; usleep 1000; echo >>/tmp/rounds; done")
	dropped.LogLimits = loglimit.Limits{Rate: 256 << 10, Burst: 64 << 10, Over: loglimit.Drop}
	n.run(rotated)
	n.run(held)
	n.run(dropped)
	for round := range 12 {
		time.Sleep(time.Duration(37*round%100) * time.Millisecond)
		if round%4 == 3 {
			if err := n.client.Upgrade(n.ctx()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		before := n.pid()
		if err := unix.Kill(before, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.until("another keeper answers", func() bool { return n.pid() != before })
	}
	n.until("all lines are there", func() bool {
		text, err := os.ReadFile(n.logPath("held"))
		return err == nil && strings.HasSuffix(string(text), " F 20000\n")
	})
	if err := os.WriteFile(n.root+"/tmp/stop", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"rotated", "held", "dropped"} {
		n.ended(id)
	}
	all := n.parts("rotated")
	n.sequence(lines, all...)
	n.sequence(20000, n.parts("held")...)
	for _, path := range all {
		if st, err := os.Stat(path); err != nil || st.Size() > size {
			t.Errorf("%s: %v, %v", path, st, err)
		}
	}
	if least := lines * len("2026-01-02T03:04:05.000000000Z stdout F 123456\n") / size; len(all) < least {
		t.Errorf("%d files", len(all))
	}
	n.dropped("dropped")
}

var report = regexp.MustCompile(`^berth: (\d+) lines? \(\d+ bytes\) dropped: `)

// dropped checks that the lines that a log has and those that it says were dropped are all that there were: a thousand
// in each of the container's rounds.
func (n *node) dropped(id string) {
	n.Helper()
	rounds, err := os.ReadFile(n.root + "/tmp/rounds")
	if err != nil {
		n.Fatal(err)
	}
	there, gone := 0, 0
	for _, r := range n.records(n.logPath(id)) {
		if m := report.FindStringSubmatch(r.content); m != nil {
			lines, err := strconv.Atoi(m[1])
			if err != nil {
				n.Fatal(err)
			}
			gone += lines
		} else {
			there++
		}
	}
	if want := len(rounds) * 1000; there+gone != want || gone == 0 || there == 0 {
		n.Errorf("%d lines are there and %d were dropped, of %d", there, gone, want)
	}
}

// TestWrongLimitsOfALogAreRefused, and the error says which and why.
func TestWrongLimitsOfALogAreRefused(t *testing.T) {
	n := start(t)
	for want, limits := range map[string]loglimit.Limits{
		"max_size":  {MaxSize: 1000, MaxFiles: 3},
		"max_files": {MaxSize: 1 << 20, MaxFiles: 1},
		"rate":      {Rate: 5, Burst: 1 << 20, Over: loglimit.Wait},
		"burst":     {Rate: 1 << 20, Burst: 5, Over: loglimit.Wait},
		"over":      {Rate: 1 << 20, Burst: 1 << 20, Over: "explode"},
	} {
		req := n.request("a", "true")
		req.LogLimits = limits
		if _, err := n.client.Run(n.ctx(), req); !errors.Is(err, errdefs.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), want+": ") {
			t.Errorf("%+v: %v", limits, err)
		}
	}
}
