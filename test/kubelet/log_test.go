package kubelet

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestLogsThroughTheKubelet(t *testing.T) {
	t.Parallel()
	p := shared(t).run(t, manifest("logs",
		sh("main", "for i in 1 2 3 4 5; do echo line $i; done; sleep 0.3; echo to stderr >&2; "+
			"while ! test -e /go; do sleep 0.1; done; for i in 6 7 8; do echo line $i; sleep 0.3; done; "+sleep)))
	p.running()
	p.log("main", "to stderr")
	for query, want := range map[string]string{
		"":                               "line 1\nline 2\nline 3\nline 4\nline 5\nto stderr\n",
		"tailLines=2":                    "line 5\nto stderr\n",
		"limitBytes=10":                  "line 1\nlin",
		"sinceTime=2100-01-01T00:00:00Z": "",
		"sinceSeconds=3600&tailLines=1":  "to stderr\n",
	} {
		if got, err := p.logs("main", query); err != nil || got != want {
			t.Errorf("%q: %q, %v", query, got, err)
		}
	}
	stamped, err := p.logs("main", "timestamps=true&tailLines=1")
	if err != nil {
		t.Fatal(err)
	}
	if at, rest, _ := strings.Cut(stamped, " "); rest != "to stderr\n" {
		t.Errorf("with times: %q", stamped)
	} else if when, err := time.Parse(time.RFC3339Nano, at); err != nil || time.Since(when) > time.Hour {
		t.Errorf("the time is %q, %v", at, err)
	}
	// Followed, a log comes as it is written.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"https://"+p.k.address+"/containerLogs/default/"+p.name+"/main?follow=true&tailLines=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := p.k.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("followed: %q, not %q (%v)", lines.Text(), want, lines.Err())
		}
	}
	next("to stderr")
	p.sh("main", "touch /go")
	for _, want := range []string{"line 6", "line 7", "line 8"} {
		next(want)
	}
	// A log that is followed ends with its container.
	p.remove()
	if lines.Scan() {
		t.Errorf("one more line: %q", lines.Text())
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
}

// TestLogsAreRotatedWithoutALostLine lets the kubelet rotate the log of a container that writes.
func TestLogsAreRotatedWithoutALostLine(t *testing.T) {
	t.Parallel()
	const lines = 20000
	k := shared(t)
	script := fmt.Sprintf("i=0; while test $i -lt %d; do echo line-$i-of-a-log-that-is-rotated-while-it-is-written; "+
		"i=$((i+1)); test $((i%%400)) = 0 && sleep 0.2; done; ", lines)
	p := k.run(t, manifest("rotated", sh("main", script+sleep)))
	p.running()
	name := fmt.Sprintf("line-%d-of", lines-1)
	eventually(t, 90*time.Second, "all is written", func() error {
		got, err := p.logs("main", "tailLines=1")
		if err == nil && !strings.HasPrefix(got, name) {
			err = fmt.Errorf("the last line is %q", got)
		}
		return err
	})
	dir := filepath.Join(k.node.Dir, "pod-logs", fmt.Sprintf("default_%s_%s", p.name, p.spec.UID), "main")
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 2 {
		t.Fatalf("%d files: nothing was rotated", len(files))
	}
	t.Logf("%d files", len(files))
	// Older files are compressed or removed; of those that are plain text, no line is missing between first and last.
	first, last, count := -1, -1, 0
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil || strings.HasSuffix(file.Name(), ".gz") {
			continue
		}
		previous := -1
		for line := range strings.Lines(string(data)) {
			var at, stream, tag string
			var number int
			_, err := fmt.Sscanf(line, "%s %s %s line-%d-of", &at, &stream, &tag, &number)
			if err != nil || stream != "stdout" || tag != "F" {
				t.Fatalf("%s: %q, %v", file.Name(), line, err)
			}
			if previous >= 0 && number != previous+1 {
				t.Fatalf("%s: after line %d comes %d", file.Name(), previous, number)
			}
			previous = number
			count++
			if first < 0 || number < first {
				first = number
			}
			last = max(last, number)
		}
	}
	if last != lines-1 || count != last-first+1 {
		t.Errorf("%d lines, the first is %d, the last %d", count, first, last)
	}
	if now, err := p.now(); err != nil || status(now, "main").RestartCount != 0 || now.Status.Phase != v1.PodRunning {
		t.Errorf("%v", err)
	}
}
