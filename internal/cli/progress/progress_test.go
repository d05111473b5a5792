package progress

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containerd/console"

	berthv1 "berth/api/berth/v1"
)

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func layer(phase berthv1.Phase, offset, total int64) *berthv1.Layer {
	return &berthv1.Layer{Digest: digest, Phase: phase, Offset: offset, Total: total}
}

// TestALogHasALineForEachStep: a build's log gets one line when a layer begins, one when it is done with its mean rate,
// and none in between unless that takes long.
func TestALogHasALineForEachStep(t *testing.T) {
	var out bytes.Buffer
	show := New(t.Context(), &out, Pull).(*lines)
	now := time.Now()
	show.now = func() time.Time { return now }
	show.Layer(layer(berthv1.Phase_PHASE_WAITING, 0, 100<<20))
	show.Layer(layer(berthv1.Phase_PHASE_DOWNLOADING, 20<<20, 100<<20))
	for i := int64(21); i < 100; i++ {
		show.Layer(layer(berthv1.Phase_PHASE_DOWNLOADING, i<<20, 100<<20))
	}
	now = now.Add(2 * time.Second)
	show.Layer(layer(berthv1.Phase_PHASE_DONE, 100<<20, 100<<20))
	show.End(true)
	// 20 MiB were there from an earlier attempt: 80 MiB in two seconds.
	want := "  layer 0123456789ab  100MiB  downloading\n" +
		"  layer 0123456789ab  100MiB  done in 2s, 40.0MiB/s\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// TestALogTellsOfALayerThatTakesLong, with the rate and the time that is left. Seen to fail without the lines between.
func TestALogTellsOfALayerThatTakesLong(t *testing.T) {
	var out bytes.Buffer
	show := New(t.Context(), &out, Pull).(*lines)
	now := time.Now()
	show.now = func() time.Time { return now }
	show.Layer(layer(berthv1.Phase_PHASE_DOWNLOADING, 200<<20, 1000<<20))
	for i := range 250 { // ten times a second
		now = now.Add(100 * time.Millisecond)
		show.Layer(layer(berthv1.Phase_PHASE_DOWNLOADING, (201+int64(i))<<20, 1000<<20))
	}
	want := "  layer 0123456789ab  1000MiB  downloading\n" +
		"  layer 0123456789ab  1000MiB  downloading, 300MiB so far, 10.0MiB/s, 1m10s left\n" +
		"  layer 0123456789ab  1000MiB  downloading, 400MiB so far, 10.0MiB/s, 1m0s left\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// TestBarsFitA80ColumnTerminal: the id, the phase, the bar, the bytes, the rate and the time left are on one line.
func TestBarsFitA80ColumnTerminal(t *testing.T) {
	master, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	slave, err := openTerminal(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := master.Resize(console.WinSize{Width: 80, Height: 24}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var data []byte
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buf := make([]byte, 4<<10); ; {
			n, err := master.Read(buf) // ends with EIO when the other side is closed
			mu.Lock()
			data = append(data, buf[:n]...)
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	shown := func() (lines []string) {
		mu.Lock()
		defer mu.Unlock()
		text := regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]").ReplaceAllString(string(data), "")
		return strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' })
	}
	whole := regexp.MustCompile(`0123456789ab +downloading .*\[.*\] .* / 1\.2 GiB .*MiB/s \d+s`)
	rated := func() bool { return slices.ContainsFunc(shown(), whole.MatchString) }
	show := New(t.Context(), slave, Pull)
	if _, ok := show.(*bars); !ok {
		t.Fatalf("a terminal gets %T, not bars", show)
	}
	for i, end := int64(0), time.Now().Add(time.Minute); !rated() && time.Now().Before(end); i++ {
		show.Layer(layer(berthv1.Phase_PHASE_DOWNLOADING, min(i*15, 1100)<<20, 1200<<20))
		time.Sleep(60 * time.Millisecond)
	}
	show.End(false)
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if err := master.Close(); err != nil {
		t.Fatal(err)
	}
	for _, line := range shown() {
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
	if !rated() {
		t.Errorf("no line has a bar, a rate and the time left:\n%s", strings.Join(shown(), "\n"))
	}
}
