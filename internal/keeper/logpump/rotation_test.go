package logpump

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/loglimit"
	"berth/internal/logpart"
)

// limited is pump with limits, and a logger that is read.
func limited(t testing.TB, path string, limits loglimit.Limits) (l *Log, p *Pump, write *os.File, said *bytes.Buffer) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	said = &bytes.Buffer{}
	l = New(path, roomy(t.TempDir()), slog.New(slog.NewTextHandler(said, nil)))
	l.Limit(limits.Complete(), true)
	p, err := NewPump(l, Stdout, fds[0])
	if err != nil {
		t.Fatal(err)
	}
	p.Start()
	return l, p, os.NewFile(uintptr(fds[1]), "write"), said
}

// files are the parts of a log and the log, the oldest first.
func files(t testing.TB, path string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, name := range logpart.Of(filepath.Base(path), names) {
		all = append(all, filepath.Join(filepath.Dir(path), name))
	}
	return append(all, path)
}

// everything is what all files of a log have together.
func everything(t testing.TB, path string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range files(t, path) {
		text, _ := contents(t, name)
		all.WriteString(text)
	}
	return all.String()
}

// TestNoFileIsLargerThanItsLimitAndNoLineIsLostOrSplit, with lines of one record and of several.
func TestNoFileIsLargerThanItsLimitAndNoLineIsLostOrSplit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	const size = 1 << 20
	before := Total()
	_, p, w, said := limited(t, path, loglimit.Limits{MaxSize: size, MaxFiles: 1000})
	var want strings.Builder
	for i := range 20000 {
		n := i % 300
		if i%500 == 0 {
			n = 3*MaxLine + i
		}
		fmt.Fprintf(&want, "%d %s\n", i, strings.Repeat("x", n))
	}
	if _, err := w.WriteString(want.String()); err != nil {
		t.Fatal(err)
	}
	w.Close()
	<-p.Done()
	all := files(t, path)
	if len(all) < want.Len()/size {
		t.Errorf("%d bytes are in %d files", want.Len(), len(all))
	}
	if got := Total().Rotations - before.Rotations; got != uint64(len(all)-1) {
		t.Errorf("%d rotations are counted, and there are %d files", got, len(all))
	}
	for i, name := range all {
		text, _ := contents(t, name)
		if i < len(all)-1 && !strings.HasSuffix(text, "\n") {
			t.Errorf("file %d ends in the middle of a line", i)
		}
		if st, err := os.Stat(name); err != nil || st.Size() > size || i < len(all)-1 && st.Size() < size/2 {
			t.Errorf("file %d: %v, %v", i, st, err)
		}
	}
	if got := everything(t, path); got != want.String() {
		t.Errorf("%d bytes, want %d", len(got), want.Len())
	}
	if said.Len() > 0 {
		t.Errorf("the log says %s", said)
	}
}

// TestALineWithoutEndDoesNotFillTheDisk: it is split where the file is full.
func TestALineWithoutEndDoesNotFillTheDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	const size = 256 << 10
	before := Total()
	_, p, w, _ := limited(t, path, loglimit.Limits{MaxSize: size, MaxFiles: 3})
	if _, err := w.WriteString(strings.Repeat("x", 4<<20)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	<-p.Done()
	all := files(t, path)
	var kept int64
	for _, name := range all {
		st, err := os.Stat(name)
		if err != nil || st.Size() > size {
			t.Errorf("%s: %v, %v", name, st, err)
		}
		kept += st.Size()
	}
	now := Total()
	if len(all) != 3 || now.Bytes-before.Bytes != uint64(kept)+now.Removed-before.Removed {
		t.Errorf("%d files; %d bytes were written, %d are there and %d were removed", len(all), now.Bytes-before.Bytes, kept,
			now.Removed-before.Removed)
	}
}

// A process that is killed between any two steps of a rotation loses nothing, and the next one writes nothing twice.
func TestProcessThatWasKilledInARotation(t *testing.T) {
	for name, killed := range map[string]func(t *testing.T, l *Log, b *buffer){
		"before the rename": func(*testing.T, *Log, *buffer) {},
		"after the rename": func(t *testing.T, l *Log, _ *buffer) {
			if err := os.Rename(l.path, filepath.Join(filepath.Dir(l.path), logpart.Name("0.log", time.Now()))); err != nil {
				t.Fatal(err)
			}
		},
		"after the new file is opened": func(t *testing.T, l *Log, _ *buffer) { rotate(t, l) },
		"in the first write to it": func(t *testing.T, l *Log, b *buffer) {
			f := rotate(t, l)
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			const record = "2026-01-02T03:04:05.000000000Z stdout F second\n"
			b.begin(&st, len(record), mark(b.pos, false))
			if _, err := f.WriteString(record[:20]); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			l, p, w, _ := limited(t, path, loglimit.Limits{MaxSize: 256 << 10, MaxFiles: 10})
			const first = 150 << 10
			text := strings.Repeat(strings.Repeat("f", 1023)+"\n", first>>10)
			fmt.Fprint(w, text)
			until(t, "the first file is written", func() bool {
				st, err := os.Stat(path)
				return err == nil && st.Size() > first
			})
			p.Stop()
			fmt.Fprint(w, "second\n")
			if _, err := p.buf.fill(int(p.file.Fd()), readSize); err != nil {
				t.Fatal(err)
			}
			killed(t, l, p.buf)
			held := map[Role]int{}
			if err := p.buf.control(func(role Role, fd int) { held[role] = dup(t, fd) }); err != nil {
				t.Fatal(err)
			}
			pipe := dup(t, int(p.file.Fd()))
			p.file.Close()
			p.buf.close()
			l.Close()

			next := New(path, roomy(t.TempDir()), quiet())
			next.Limit(loglimit.Limits{MaxSize: 256 << 10, MaxFiles: 10}, false)
			adopted, err := AdoptPump(next, Stdout, pipe, held)
			if err != nil {
				t.Fatal(err)
			}
			next.Recover(nil, adopted)
			adopted.Start()
			more := strings.Repeat(strings.Repeat("m", 1023)+"\n", 200)
			fmt.Fprint(w, more)
			w.Close()
			<-adopted.Done()
			if got, want := everything(t, path), text+"second\n"+more; got != want {
				t.Errorf("the log has %d bytes, want %d", len(got), len(want))
			}
		})
	}
}

// rotate rotates a log as write does, up to the first byte of the new file.
func rotate(t *testing.T, l *Log) *os.File {
	t.Helper()
	rotated, err := logpart.Rotate(l.path, l.file, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rotated.File.Close() })
	return rotated.File
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(3 * time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("it does not come: %s", what)
		}
	}
}

// TestARotationThatFailsIsToldOnceAndNothingIsLost: the log goes on in its file.
func TestARotationThatFailsIsToldOnceAndNothingIsLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("n", 240)) // a part's name would be longer than one may be
	l, p, w, said := limited(t, path, loglimit.Limits{MaxSize: 128 << 10, MaxFiles: 3})
	want := strings.Repeat(strings.Repeat("x", 99)+"\n", 10000)
	begin := time.Now()
	fmt.Fprint(w, want[:len(want)/2])
	p.Stop()
	next := l.rotation.next
	if wait := next.Sub(begin); wait < rotateAfter {
		t.Errorf("it is tried again after %v", wait)
	}
	p.Start()
	fmt.Fprint(w, want[len(want)/2:])
	w.Close()
	<-p.Done()
	if time.Now().Before(next) && l.rotation.next != next {
		t.Error("it was tried again before its time")
	}
	if got := everything(t, path); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	if n := strings.Count(said.String(), "log cannot be rotated"); n != 1 {
		t.Errorf("told %d times: %s", n, said)
	}
}

// TestAFullDiskLeavesTheLogWhereItIs: a new file cannot be made, and the old one has its name again.
func TestAFullDiskLeavesTheLogWhereItIs(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=2"); err != nil {
		t.Skipf("needs a tmpfs: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(dir, "0.log")
	_, p, w, said := limited(t, path, loglimit.Limits{MaxSize: 128 << 10, MaxFiles: 3})
	want := strings.Repeat(strings.Repeat("x", 99)+"\n", 10000)
	fmt.Fprint(w, want)
	w.Close()
	<-p.Done()
	if got := everything(t, path); got != want || len(files(t, path)) != 1 {
		t.Errorf("%d bytes, want %d, in %q", len(got), len(want), files(t, path))
	}
	if n := strings.Count(said.String(), "no space left on device"); n != 1 {
		t.Errorf("told %d times: %s", n, said)
	}
}

// TestTheKeeperLeavesAKubeletTimeToRotate: it makes no file in the place of one that a kubelet has just renamed, and
// could still rename back. After a while it does.
func TestTheKeeperLeavesAKubeletTimeToRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	l, p, w, said := limited(t, path, loglimit.Limits{MaxSize: 128 << 10, MaxFiles: 9})
	line := strings.Repeat("x", 99) + "\n"
	var want strings.Builder
	write := func(lines int) {
		text := strings.Repeat(line, lines)
		want.WriteString(text)
		fmt.Fprint(w, text)
		until(t, "the pipe is empty", func() bool {
			n, err := unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ)
			return err == nil && n == 0
		})
		p.Stop()
		p.Start()
	}
	write(500)
	kubelet := path + "." + time.Now().Format("20060102-150405")
	if err := os.Rename(path, kubelet); err != nil {
		t.Fatal(err)
	}
	write(2000)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("there is a new file: %v", err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	write(2000) // rotates again
	if n := len(files(t, path)); n < 3 {
		t.Errorf("%d files", n)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	write(1500)
	write(1500)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("there is a new file: %v", err)
	}
	p.Stop()
	l.rotation.moved, l.rotation.next = time.Now().Add(-movedWait), time.Time{}
	p.Start()
	write(1)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("there is no new file: %v", err)
	}
	w.Close()
	<-p.Done()
	if err := os.Rename(path+".away", filepath.Join(filepath.Dir(path), logpart.Name("0.log", time.Now()))); err != nil {
		t.Fatal(err)
	}
	if got := everything(t, path); got != want.String() {
		t.Errorf("%d bytes, want %d; %s", len(got), want.Len(), said)
	}
}
