package logpump

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// left makes what a keeper leaves that was killed, as one pump of the log at path: the text has been read, and touched
// says what it was about to do with the log.
func left(t *testing.T, l *Log, text string, touched func(b *buffer)) (p *Pump, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fd := dup(t, int(r.Fd()))
	r.Close()
	b, err := newBuffer()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	b.pos += copy(b.mem[bufferBase:], text)
	b.reading(0)
	touched(b)
	held := map[Role]int{}
	if err := b.control(func(role Role, fd int) { held[role] = dup(t, fd) }); err != nil {
		t.Fatal(err)
	}
	if p, err = AdoptPump(l, Stdout, fd, held); err != nil {
		t.Fatal(err)
	}
	return p, w
}

// adopt recovers a log as the daemon does.
func adopt(l *Log, ended <-chan struct{}, p *Pump) (recovered <-chan struct{}) {
	ready := make(chan struct{})
	p.StartAfter(ready)
	go func() {
		defer close(ready)
		l.Recover(ended, p)
	}()
	return ready
}

// TestAWriteOfAKilledKeeperThatComesLateIsThereOnce: the disk takes it when the next keeper has the log already. Seen
// to fail without the wait for the end of that keeper: the line was there twice.
func TestAWriteOfAKilledKeeperThatComesLateIsThereOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const record = "2026-01-02T03:04:05.000000000Z stdout F first\n"
	l := Inherit(path, roomy(t.TempDir()), quiet())
	p, w := left(t, l, "first\n", func(b *buffer) {
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		b.touch(1)
		b.begin(&st, len(record), mark(b.pos, false))
	})
	ended := make(chan struct{})
	recovered := adopt(l, ended, p)
	fmt.Fprintln(w, "second")
	time.Sleep(3 * idle)
	if _, err := file.WriteString(record); err != nil {
		t.Fatal(err)
	}
	close(ended)
	<-recovered
	w.Close()
	<-p.Done()
	if got, _ := contents(t, path); got != "first\nsecond\n" {
		t.Errorf("the log has %q", got)
	}
}

// TestALogThatNoKilledKeeperTouchesGoesOn while one hangs in a write to another.
func TestALogThatNoKilledKeeperTouchesGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := Inherit(path, roomy(t.TempDir()), quiet())
	p, w := left(t, l, "first\n", func(b *buffer) {
		b.touch(1)
		b.put(0)
	})
	adopt(l, make(chan struct{}), p)
	fmt.Fprintln(w, "second")
	w.Close()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatal("the log waits for the end of the other keeper")
	}
	if got, _ := contents(t, path); got != "first\nsecond\n" {
		t.Errorf("the log has %q", got)
	}
}
