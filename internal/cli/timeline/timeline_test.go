package timeline

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func steps(t *testing.T) []Step {
	t.Helper()
	pod, err := Parse("pod", map[string]string{"info": `{"timings": [
		{"step": "namespaces", "begin": "2026-01-02T03:04:05Z", "took": 2000000},
		{"step": "network", "begin": "2026-01-02T03:04:05.002Z", "took": 6000000},
		{"step": "of an old version", "took": 1}]}`})
	if err != nil {
		t.Fatal(err)
	}
	container, err := Parse("a<b", map[string]string{"info": `{"timings": [
		{"step": "init", "of": "start", "begin": "2026-01-02T03:04:15.001Z", "took": 7000000},
		{"step": "start", "begin": "2026-01-02T03:04:15Z", "took": 8000000}]}`})
	if err != nil {
		t.Fatal(err)
	}
	return append(container, pod...)
}

func TestTheWaterfallLeavesOutWhatNobodyDid(t *testing.T) {
	line := New(steps(t))
	if line.Total() != 16*time.Millisecond { // and not the ten seconds between
		t.Errorf("in all %v", line.Total())
	}
	var out bytes.Buffer
	if err := line.Write(&out, 100); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[0], "pod") || !strings.Contains(lines[3], "  init") ||
		!strings.Contains(lines[4], "16.0 ms") {
		t.Fatalf("%s", out.String())
	}
	// Each step's bar begins where the one before it ended.
	at := func(l string) int { return strings.IndexAny(l, "█▉▊▋▌▍▎▏") }
	if !(at(lines[0]) < at(lines[1]) && at(lines[1]) < at(lines[2]) && at(lines[2]) < at(lines[3])) {
		t.Errorf("bars do not follow each other:\n%s", out.String())
	}
}

func TestThePictureIsXML(t *testing.T) {
	var out bytes.Buffer
	if err := New(steps(t)).SVG(&out, "a & b"); err != nil {
		t.Fatal(err)
	}
	rects := 0
	for d := xml.NewDecoder(&out); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			rects++
		}
	}
	if rects != 5 { // the background, and a bar for each step
		t.Errorf("%d rectangles", rects)
	}
}

func TestNothingIsDrawnOfNothing(t *testing.T) {
	if got, err := Parse("x", nil); got != nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Parse("x", map[string]string{"info": "{"}); err == nil {
		t.Error("broken information is taken")
	}
	if New(nil).Total() != 0 {
		t.Error("nothing takes time")
	}
}
