package dashboard

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/cli/crilog"
)

// TestNoSecretOfAPodIsShown: annotations have manifests, and the verbose status has the environment.
func TestNoSecretOfAPodIsShown(t *testing.T) {
	s := New(newFake(3).connection(), "test")
	id := fmt.Sprintf("pod%061d", 1)
	for _, path := range []string{"/api/pods", "/api/pods/" + id, "/api/pods/" + id + "/timeline"} {
		w := ask(s, path, nil)
		if w.Code != http.StatusOK || strings.Contains(w.Body.String(), secret) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := ask(s, "/api/pods/"+id, nil); !strings.Contains(w.Body.String(), `"app":"web"`) {
		t.Errorf("the page of a pod has no labels: %s", w.Body)
	}
	if w := ask(s, "/api/pods/"+id[:20], nil); w.Code != http.StatusNotFound {
		t.Errorf("a part of an ID: %d", w.Code)
	}
}

// TestManyPagesShareOneReading: 500 pods are read once for all requests that come soon after another, each status once.
func TestManyPagesShareOneReading(t *testing.T) {
	const pods = 500
	f := newFake(pods)
	s := New(f.connection(), "test")
	for range 20 {
		w := ask(s, "/api/pods", nil)
		if w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if size := w.Body.Len(); size > 1<<20 {
			t.Errorf("%d bytes", size)
		}
	}
	if n := f.count("ContainerStatus"); n != pods {
		t.Errorf("%d calls of ContainerStatus for %d containers", n, pods)
	}
	var list struct{ Data podList }
	if err := json.Unmarshal(ask(s, "/api/pods", nil).Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Data.Pods) != pods || len(list.Data.Containers) != pods || len(list.Data.Usage) != 2*pods {
		t.Errorf("%d pods, %d containers, %d figures", len(list.Data.Pods), len(list.Data.Containers), len(list.Data.Usage))
	}
	if usage := list.Data.Usage[fmt.Sprintf("con%061d", 9)]; usage.MemoryLimit == nil || *usage.MemoryLimit != 64<<20 {
		t.Errorf("the limit of a container: %+v", usage)
	}
}

// TestARuntimeThatIsAwayIsSaidToBe: with a code of its own, and the next request succeeds once it is back.
func TestARuntimeThatIsAwayIsSaidToBe(t *testing.T) {
	f := newFake(1)
	s := New(f.connection(), "test")
	f.setAway(true)
	var answer failure
	w := ask(s, "/api/pods", nil)
	err := json.Unmarshal(w.Body.Bytes(), &answer)
	if err != nil || w.Code != http.StatusServiceUnavailable || !answer.Away {
		t.Errorf("%d %s, %v", w.Code, w.Body, err)
	}
	f.setAway(false)
	if w := ask(s, "/api/pods", nil); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = ask(s, "/api/devices", nil)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "device manager is off") {
		t.Errorf("a node without a device manager: %d %s", w.Code, w.Body)
	}
}

// TestEventsGoOnAfterTheRuntimeWasAway: also for a page that was opened later.
func TestEventsGoOnAfterTheRuntimeWasAway(t *testing.T) {
	f := newFake(1)
	_, get := serve(t, f)
	f.happen(t, "first")
	response, err := get("/api/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	var got []string
	until := func(want string) {
		t.Helper()
		for lines.Scan() {
			var batch struct{ Events []event }
			if err := json.Unmarshal(lines.Bytes(), &batch); err != nil {
				t.Fatal(err)
			}
			for _, e := range batch.Events {
				got = append(got, e.Event.Event+" "+e.Subject)
			}
			if len(got) > 0 && got[len(got)-1] == want {
				return
			}
		}
		t.Fatalf("the stream ends: %q, %v", got, lines.Err())
	}
	until("created first")
	f.breakOff()
	until("back ")
	f.happen(t, "second")
	until("created second")
	if want := "created first|away |back |created second"; strings.Join(got, "|") != want {
		t.Errorf("got %q", got)
	}
	later, err := get("/api/events?after=3")
	if err != nil {
		t.Fatal(err)
	}
	defer later.Body.Close()
	lines, got = bufio.NewScanner(later.Body), nil
	until("created second")
	if len(got) != 1 {
		t.Errorf("a page that has three events gets %q", got)
	}
}

// TestALogIsFollowed: from the last lines on, and a line that is written appears at once.
func TestALogIsFollowed(t *testing.T) {
	f := newFake(2)
	f.logPath = filepath.Join(t.TempDir(), "0.log")
	write := func(text string) {
		t.Helper()
		file, err := os.OpenFile(f.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		fmt.Fprintf(file, "2026-01-31T12:00:00.5Z stderr F %s\n", text)
	}
	for i := range 5 {
		write(fmt.Sprint("line ", i))
	}
	_, get := serve(t, f)
	running := fmt.Sprintf("con%061d", 1)
	response, err := get("/api/containers/" + running + "/log?tail=2")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	var got []string
	for lines.Scan() && len(got) < 3 {
		var batch logBatch
		if err := json.Unmarshal(lines.Bytes(), &batch); err != nil {
			t.Fatal(err)
		}
		for _, line := range batch.Lines {
			got = append(got, line.Text)
			if !line.Stderr || line.Time != "2026-01-31T12:00:00.5Z" {
				t.Errorf("%+v", line)
			}
		}
		if len(got) == 2 {
			write("<b>live")
		}
		if len(got) == 3 {
			break
		}
	}
	if strings.Join(got, "|") != "line 3|line 4|<b>live" {
		t.Errorf("got %q, %v", got, lines.Err())
	}
	for path, code := range map[string]int{
		"/api/containers/" + running + "/log":             http.StatusBadRequest,
		"/api/containers/" + running + "/log?tail=-1":     http.StatusBadRequest,
		"/api/containers/" + running + "/log?tail=999999": http.StatusBadRequest,
		"/api/containers/" + running[:9] + "/log?tail=1":  http.StatusNotFound,
	} {
		response, err := get(path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != code {
			t.Errorf("%s: %d", path, response.StatusCode)
		}
	}
}

// TestALogThatFloodsTakesBoundedMemory: what waits for a browser is the newest lines, and how many are left out is
// said.
func TestALogThatFloodsTakesBoundedMemory(t *testing.T) {
	b := &backlog{limit: burst}
	for i := range 3 * burst {
		b.add(&crilog.Line{Text: []byte(fmt.Sprint(i))})
	}
	batch := b.take()
	if len(batch.Lines) != burst || batch.Skipped != 2*burst || batch.Lines[burst-1].Text != fmt.Sprint(3*burst-1) {
		t.Errorf("%d lines, %d skipped", len(batch.Lines), batch.Skipped)
	}
	long := []byte(strings.Repeat("x", 1<<20))
	for range burst {
		b.add(&crilog.Line{Text: long})
		b.add(&crilog.Line{Text: long, Continued: true})
	}
	batch, bytes := b.take(), 0
	for _, line := range batch.Lines {
		bytes += len(line.Text)
		if !line.Cut || len(line.Text) > maxLine {
			t.Fatalf("a long line is %d bytes, cut: %t", len(line.Text), line.Cut)
		}
	}
	if bytes > maxPending || len(batch.Lines)+batch.Skipped != burst {
		t.Errorf("%d bytes, %d lines, %d skipped", bytes, len(batch.Lines), batch.Skipped)
	}
}

// TestStreamsHaveALimit: one more is refused with what to do, and there is room again once one has ended.
func TestStreamsHaveALimit(t *testing.T) {
	_, get := serve(t, newFake(1))
	var open []*http.Response
	for range maxStreams {
		response, err := get("/api/events")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		open = append(open, response)
	}
	response, err := get("/api/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("one stream more: %d", response.StatusCode)
	}
	if body := text(t, response); !strings.Contains(body, "close other tabs") {
		t.Error(body)
	}
	open[0].Body.Close()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		response, err := get("/api/events")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a stream that has ended keeps its place")
		}
	}
}
