package logpump

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/loglimit"
)

// TestAContainerIsHeldBackToItsRateAndLosesNothing: two seconds' worth of output after a burst takes two seconds.
func TestAContainerIsHeldBackToItsRateAndLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	path := filepath.Join(t.TempDir(), "0.log")
	const second, burst = 512 << 10, 256 << 10
	before := Total()
	_, p, w, _ := limited(t, path, loglimit.Limits{Rate: second, Burst: burst})
	want := strings.Repeat(strings.Repeat("x", 999)+"\n", 1000) // and a head for each line
	begin := time.Now()
	if _, err := w.WriteString(want); err != nil {
		t.Fatal(err)
	}
	w.Close()
	<-p.Done()
	took := time.Since(begin)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	least := time.Duration(float64(st.Size()-burst) / second * float64(time.Second))
	if took < least*9/10 { // the last step is not waited for
		t.Errorf("%d bytes took %v, and %v is the least", st.Size(), took, least)
	}
	if got, _ := contents(t, path); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	if held := Total().Held - before.Held; held < least/2 || held > took {
		t.Errorf("held back for %v of %v", held, took)
	}
}

// TestNobodyWaitsForAPumpThatIsHeldBack: neither an upgrade, nor the end of the container.
func TestNobodyWaitsForAPumpThatIsHeldBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	_, p, w, _ := limited(t, path, loglimit.Limits{Rate: loglimit.MinRate})
	want := strings.Repeat(strings.Repeat("x", 99)+"\n", 600) // a minute's worth
	if _, err := w.WriteString(want); err != nil {
		t.Fatal(err)
	}
	until(t, "it is held back", func() bool { return p.log.rate.wait(time.Now()) > 0 })
	begin := time.Now()
	for range 3 {
		p.Stop()
		p.Start()
	}
	w.Close()
	p.Hasten()
	<-p.Done()
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if got, _ := contents(t, path); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
}

var report = regexp.MustCompile(`^berth: (\d+) lines? \((\d+) bytes\) dropped: the container writes more than \d+ ` +
	`bytes a second to its log$`)

// count adds up what a log has and what it says that it has not: the number of lines, and of bytes of records. Of lines
// that are there, each has its end.
func count(t *testing.T, paths ...string) (lines, dropped, bytes int) {
	t.Helper()
	for _, path := range paths {
		text, _ := contents(t, path)
		for line := range strings.Lines(text) {
			m := report.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
			if m == nil {
				if !strings.HasPrefix(line, "<") || !strings.HasSuffix(line, ">\n") {
					t.Fatalf("a piece of a line: %.60q", line)
				}
				lines++
				continue
			}
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			size, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			dropped, bytes = dropped+n, bytes+size
		}
	}
	return lines, dropped, bytes
}

// TestWholeLinesAreDroppedAndCounted, short ones and such of several records, while the pump is stopped and started.
func TestWholeLinesAreDroppedAndCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	path := filepath.Join(t.TempDir(), "0.log")
	before := Total()
	_, p, w, _ := limited(t, path, loglimit.Limits{Rate: 64 << 10, Burst: 32 << 10, Over: loglimit.Drop})
	sent := 0
	send := func(n int) {
		if _, err := fmt.Fprintf(w, "<%s>\n", strings.Repeat("x", n)); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	for i := range 8 {
		for j := range 300 {
			send(j % 100)
		}
		send(2*MaxLine + 5)
		if _, err := w.WriteString("<a beginning "); err != nil {
			t.Fatal(err)
		}
		p.Stop()
		p.Start()
		time.Sleep(time.Duration(i) * 25 * time.Millisecond) // sometimes the beginning is a record of its own
		if _, err := w.WriteString("and an end>\n"); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	// Nothing more comes, and the log says so all the same, before the container ends.
	until(t, "the log says how much was dropped", func() bool {
		lines, dropped, _ := count(t, path)
		return lines+dropped == sent
	})
	for range 3000 {
		send(100)
	}
	if _, err := w.WriteString("<without an end"); err != nil { // is dropped as well, and a line
		t.Fatal(err)
	}
	w.Close()
	<-p.Done()
	lines, dropped, bytes := count(t, path)
	if lines == 0 || dropped == 0 || lines+dropped != sent+1 {
		t.Errorf("%d lines are there and %d were dropped, of %d", lines, dropped, sent+1)
	}
	now := Total()
	if n := now.LimitedLines - before.LimitedLines; n != uint64(dropped) {
		t.Errorf("%d lines are counted, and the log says %d", n, dropped)
	}
	if n := now.LimitedBytes - before.LimitedBytes; n != uint64(bytes) {
		t.Errorf("%d bytes are counted, and the log says %d", n, bytes)
	}
}

// What a process that is killed has dropped is counted once, whatever the moment. Each case fails without what it is
// about in recoverBuffer, put or skip.
func TestDroppedLinesOfAProcessThatWasKilled(t *testing.T) {
	const text = "<one>\n<two>\n<three>\n"
	const first = "2026-01-02T03:04:05.000000000Z stdout F <one>\n"
	after := func(n int) uint64 { return mark(bufferBase+n, false) }
	begin := func(t *testing.T, b *buffer, log *os.File, written string) {
		var st unix.Stat_t
		if err := unix.Fstat(int(log.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		*b.lost = lost{lines: 1, bytes: 46}
		b.begin(&st, len(first), after(len("<one>\n<two>\n")))
		if _, err := log.WriteString(written); err != nil {
			t.Fatal(err)
		}
	}
	// Each leaves the first line in the log and the second dropped, or nothing of that done.
	for name, killed := range map[string]func(t *testing.T, b *buffer, log *os.File){
		"before a write":   func(t *testing.T, b *buffer, log *os.File) { begin(t, b, log, "") },
		"inside a write":   func(t *testing.T, b *buffer, log *os.File) { begin(t, b, log, first[:9]) },
		"after a write":    func(t *testing.T, b *buffer, log *os.File) { begin(t, b, log, first) },
		"after it is done": func(t *testing.T, b *buffer, log *os.File) { begin(t, b, log, first); b.put(b.h.next) },
		"while that is noted": func(t *testing.T, b *buffer, log *os.File) {
			begin(t, b, log, first)
			b.h.done = b.h.next
		},
		"before a skip is noted": func(t *testing.T, b *buffer, log *os.File) {
			begin(t, b, log, first)
			b.put(b.h.next)
			b.h.inode = 0 // of a file that was rotated since
			b.h.next, b.h.nextLost, b.h.writing = after(len(text)), lost{lines: 2, bytes: 94}, skipping
		},
		"while a skip is noted": func(t *testing.T, b *buffer, log *os.File) {
			begin(t, b, log, first)
			b.put(b.h.next)
			b.h.inode = 0 // of a file that was rotated since
			b.h.next, b.h.nextLost, b.h.writing = after(len(text)), lost{lines: 2, bytes: 94}, skipping
			b.h.done = b.h.next
		},
		"before a report is written": func(t *testing.T, b *buffer, log *os.File) {
			begin(t, b, log, first)
			b.put(b.h.next)
			*b.lost = lost{}
			var st unix.Stat_t
			if err := unix.Fstat(int(log.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			b.begin(&st, 100, b.h.done)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			limits := loglimit.Limits{Rate: 1 << 20, Burst: 1 << 20, Over: loglimit.Drop}
			l, p, w, _ := limited(t, path, limits)
			p.Stop()
			fmt.Fprint(w, text)
			if _, err := p.buf.fill(int(p.file.Fd()), readSize); err != nil {
				t.Fatal(err)
			}
			killed(t, p.buf, l.file)
			held := map[Role]int{}
			if err := p.buf.control(func(role Role, fd int) { held[role] = dup(t, fd) }); err != nil {
				t.Fatal(err)
			}
			pipe := dup(t, int(p.file.Fd()))
			p.file.Close()
			p.buf.close()
			l.Close()

			next := New(path, roomy(t.TempDir()), quiet())
			next.Limit(limits, true)
			adopted, err := AdoptPump(next, Stdout, pipe, held)
			if err != nil {
				t.Fatal(err)
			}
			next.Recover(nil, adopted)
			adopted.Start()
			fmt.Fprint(w, "<four>\n")
			w.Close()
			<-adopted.Done()
			if lines, dropped, _ := count(t, path); lines+dropped != 4 {
				got, _ := contents(t, path)
				t.Errorf("%d lines are there and %d were dropped, of 4: %q", lines, dropped, got)
			}
		})
	}
}
