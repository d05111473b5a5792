package logpump

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/loglimit"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// pump is a log with a pump of stdout; write goes into it.
func pump(t testing.TB, path string) (l *Log, p *Pump, write *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	l = New(path, roomy(t.TempDir()), quiet())
	p, err := NewPump(l, Stdout, fds[0])
	if err != nil {
		t.Fatal(err)
	}
	p.Start()
	return l, p, os.NewFile(uintptr(fds[1]), "write")
}

// untilRead waits until nothing is left in a pipe.
func untilRead(t *testing.T, w *os.File) {
	t.Helper()
	until(t, "the pipe is empty", func() bool {
		n, err := unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ)
		if err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
}

func contents(t testing.TB, path string) (text string, records int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(f) != 4 || len(f[3]) > MaxLine {
			t.Fatalf("record %q", line)
		}
		out.WriteString(f[3])
		if f[2] == "F" {
			out.WriteByte('\n')
		}
		records++
	}
	return out.String(), records
}

func TestLinesOfEverySizeComeThrough(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	_, p, w := pump(t, path)
	var want strings.Builder
	for _, n := range []int{0, 1, 100, MaxLine - 1, MaxLine, MaxLine + 1, 3 * MaxLine, 3*MaxLine + 7, 1 << 20, 0, 0, 5} {
		want.WriteString(strings.Repeat("x", n) + "\n")
	}
	for b := []byte(want.String()); len(b) > 0; {
		n := min(len(b), 7777)
		if _, err := w.Write(b[:n]); err != nil {
			t.Fatal(err)
		}
		b = b[n:]
	}
	w.Close()
	<-p.Done()
	if got, _ := contents(t, path); got != want.String() {
		t.Errorf("%d bytes, want %d", len(got), want.Len())
	}
}

// TestRecordsAreThoseOfContainerd: a line of the longest length is one record, though its newline comes in another
// read, and a last line without newline stays partial.
func TestRecordsAreThoseOfContainerd(t *testing.T) {
	long := strings.Repeat("x", MaxLine)
	for name, c := range map[string]struct {
		writes []string
		tags   string
	}{
		"a line":                            {[]string{"abc\n"}, "F"},
		"the longest line":                  {[]string{long, "\n"}, "F"},
		"longer by one":                     {[]string{long + "x", "\n"}, "PF"},
		"no newline":                        {[]string{"abc"}, "P"},
		"no newline after the longest line": {[]string{long + "\nabc"}, "FP"},
		"the longest line without newline":  {[]string{long}, "P"},
		"nothing":                           {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			_, p, w := pump(t, path)
			p.mu.Lock()
			p.held = time.Hour // no beginning of a line is written before its end
			p.mu.Unlock()
			for _, text := range c.writes {
				if _, err := w.WriteString(text); err != nil {
					t.Fatal(err)
				}
				untilRead(t, w) // each has a read of its own
			}
			w.Close()
			<-p.Done()
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tags := ""
			for line := range strings.Lines(string(b)) {
				tags += strings.SplitN(line, " ", 4)[2]
			}
			if tags != c.tags {
				t.Errorf("the records have the tags %q, want %q", tags, c.tags)
			}
		})
	}
}

func TestStopInTheMiddleOfALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, p, w := pump(t, path)
	var want strings.Builder
	for i := range 50 {
		fmt.Fprintf(w, "begin %d ", i)
		p.Stop()
		l.Stop()
		st, err := p.Save()
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Dup(st.FD)
		if err != nil {
			t.Fatal(err)
		}
		ls, err := l.Save()
		if err != nil {
			t.Fatal(err)
		}
		if ls.FD, err = unix.Dup(ls.FD); err != nil {
			t.Fatal(err)
		}
		for role, held := range st.Held {
			// The old pump's own go with it, when the collector comes by: in a keeper a new program has them.
			if st.Held[role], err = unix.Dup(held); err != nil {
				t.Fatal(err)
			}
		}
		p.file.Close()
		l.Close()
		st.FD = fd
		l = Restore(ls, roomy(t.TempDir()), quiet())
		if p, err = RestorePump(l, Stdout, st); err != nil {
			t.Fatal(err)
		}
		p.Start()
		fmt.Fprintf(w, "end %d\n", i)
		fmt.Fprintf(&want, "begin %d end %d\n", i, i)
	}
	w.Close()
	<-p.Done()
	if got, _ := contents(t, path); got != want.String() {
		t.Errorf("got %q", got)
	}
}

func TestFullDiskLeavesWholeRecords(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs a tmpfs: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(dir, "log")
	l, p, w := pump(t, path)
	line := strings.Repeat("y", 1000) + "\n"
	for range 500 {
		if _, err := io.WriteString(w, line); err != nil {
			t.Fatal(err)
		}
	}
	// The writer was never stopped. With room again, the log goes on.
	for range 100 {
		if l.Dropped() > 0 {
			break
		}
		fmt.Fprint(w, line)
	}
	// All of that has been tried before there is room.
	untilRead(t, w)
	for dropped, since := l.Dropped(), time.Now(); time.Since(since) < time.Second; time.Sleep(time.Millisecond) {
		if now := l.Dropped(); now != dropped {
			dropped, since = now, time.Now()
		}
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, strings.Repeat("z", 10)+"\n")
	w.Close()
	<-p.Done()
	got, _ := contents(t, path)
	if !strings.HasSuffix(got, "zzzzzzzzzz\n") {
		t.Errorf("log does not go on after the disk was full: %d bytes", len(got))
	}
	for l := range strings.Lines(got) {
		if l != line && l != "zzzzzzzzzz\n" {
			t.Errorf("torn record of %d bytes", len(l))
		}
	}
	if l.Dropped() == 0 {
		t.Error("nothing was dropped on a full disk")
	}
}

func TestARecordThatWasCutOffGoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, c := range []struct{ before, want string }{{"", ""}, {"whole\n", "whole\n"}, {"whole\nha", "whole\n"},
		{"ha", ""}} {
		if err := os.WriteFile(path, []byte(c.before), 0o640); err != nil {
			t.Fatal(err)
		}
		New(path, roomy(t.TempDir()), quiet()).Mend()
		if got, err := os.ReadFile(path); err != nil || string(got) != c.want {
			t.Errorf("%q became %q, %v", c.before, got, err)
		}
	}
}

// TestALogGoesOnInTheFileThatHasItsName, though another program has taken that of the file in use.
func TestALogGoesOnInTheFileThatHasItsName(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, l *Log, path string){
		"a rotation is undone after the file was reopened": func(t *testing.T, l *Log, path string) {
			if err := errors.Join(os.Rename(path, path+".part"), l.Reopen(), os.Rename(path+".part", path)); err != nil {
				t.Fatal(err)
			}
		},
		"the file is removed": func(t *testing.T, _ *Log, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			l, p, w := pump(t, path)
			take(t, l, path)
			fmt.Fprintln(w, "line")
			w.Close()
			<-p.Done()
			if text, _ := contents(t, path); text != "line\n" {
				t.Errorf("the log has %q", text)
			}
		})
	}
}

// TestALogWhoseDirectoryIsRemovedIsToldOnce, and what it loses is counted.
func TestALogWhoseDirectoryIsRemovedIsToldOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	l := New(filepath.Join(dir, "0.log"), roomy(t.TempDir()), slog.New(slog.NewTextHandler(&said, nil)))
	defer l.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	b, err := newBuffer()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	for range 3 {
		l.write([]byte("record\n"), b, 0)
	}
	if n := strings.Count(said.String(), "cannot be written"); n != 1 || l.Dropped() != 3*uint64(len("record\n")) {
		t.Errorf("told %d times, and %d bytes are counted: %s", n, l.Dropped(), &said)
	}
}

func TestTwoStreamsNeverMix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, p, w := pump(t, path)
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	p2, err := NewPump(l, Stderr, fds[0])
	if err != nil {
		t.Fatal(err)
	}
	p2.Start()
	w2 := os.NewFile(uintptr(fds[1]), "write")
	done := make(chan struct{})
	fill := func(w *os.File, c string) {
		for i := range 3000 {
			io.WriteString(w, strings.Repeat(c, i%997)+"\n")
		}
		w.Close()
		done <- struct{}{}
	}
	go fill(w, "o")
	go fill(w2, "e")
	<-done
	<-done
	<-p.Done()
	<-p2.Done()
	b, _ := os.ReadFile(path)
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		c := "o"
		if f[1] == "stderr" {
			c = "e"
		}
		if strings.Trim(f[3], c) != "" {
			t.Fatalf("record %q", line)
		}
	}
}

func BenchmarkPump(b *testing.B) {
	for _, size := range []int{2, 32, 100, 1000, 32768} {
		b.Run(fmt.Sprint("line", size), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "log")
			_, p, w := pump(b, path)
			block := bytes.Repeat([]byte(strings.Repeat("x", size-1)+"\n"), max(1, 65536/size))
			b.SetBytes(int64(len(block)))
			n := 0
			for b.Loop() {
				if _, err := w.Write(block); err != nil {
					b.Fatal(err)
				}
				if n += len(block); n > 256<<20 { // do not fill the disk
					n = 0
					_ = os.Truncate(path, 0)
				}
			}
			w.Close()
			<-p.Done()
		})
	}
}

// TestAFloodAfterTheEndEndsThePump: another process holds the pipe of a container that has ended, and writes faster
// than the pump reads. The pump takes what the container has left, and ends; before, it read for ever. A Stop of an
// upgrade that comes meanwhile is heard as well.
func TestAFloodAfterTheEndEndsThePump(t *testing.T) {
	for _, way := range []string{"end", "stop"} {
		t.Run(way, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			w := os.NewFile(uintptr(fds[1]), "write")
			enlarge(fds[1], pipeBusy)
			// Empty lines that are over the log's rate are slow to read and take no room.
			l := New(path, roomy(t.TempDir()), quiet())
			l.Limit(loglimit.Limits{Rate: 1, Burst: 1000, Over: loglimit.Drop}, true)
			p, err := NewPump(l, Stdout, fds[0])
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.WriteString("the container's\n"); err != nil {
				t.Fatal(err)
			}
			p.Start()
			var writers sync.WaitGroup
			var written atomic.Int64
			var stop atomic.Bool
			junk := bytes.Repeat([]byte{'\n'}, pipeDefault)
			for range 4 {
				writers.Go(func() {
					for !stop.Load() {
						n, err := w.Write(junk)
						written.Add(int64(n))
						if err != nil {
							return // the pump has closed its side
						}
					}
				})
			}
			for written.Load() < 4*pipeBusy {
				time.Sleep(time.Millisecond)
			}
			p.End()
			before := written.Load()
			if way == "stop" {
				if p.Stop(); !p.Ended() {
					p.Start() // the keeper goes on as it is
				}
			}
			<-p.Done()
			// What lay in the pipe at the end, and at the Start, and what has come into the pipe since.
			if more := written.Load() - before; !p.Ended() || more > 4*pipeBusy {
				t.Errorf("ended: %t; the flood went on for %d bytes", p.Ended(), more)
			}
			stop.Store(true)
			writers.Wait()
			w.Close()
			if got, _ := contents(t, path); !strings.HasPrefix(got, "the container's\n") {
				t.Errorf("the container's output is lost: %.100q", got)
			}
		})
	}
}

// TestAPumpWhoseLogHangsGoesOn: an upgrade does not wait for ever until a pump pauses that is at a write which hangs.
// It gives up and starts the pump, which goes on where it was, and twice no line.
func TestAPumpWhoseLogHangsGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, p, w := pump(t, path)
	l.mu.Lock() // as a write to a file system that does not answer
	if _, err := w.WriteString("one\n"); err != nil {
		t.Fatal(err)
	}
	for { // until the pump has read it
		var waits int
		_ = p.Control(func(fd int) { waits, _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
		if waits == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	p.Pause()
	paused := p.Done()
	if isClosed(paused) {
		t.Fatal("it has paused in the middle of a write")
	}
	p.Start()
	l.mu.Unlock()
	if _, err := w.WriteString("two\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	<-p.Done()
	<-paused
	if got, _ := contents(t, path); got != "one\ntwo\n" || !p.Ended() {
		t.Errorf("the log has %q; ended %t", got, p.Ended())
	}
}
