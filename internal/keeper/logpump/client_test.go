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
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/asroot"
)

// attach attaches a client to both streams and returns what it would read from.
func attach(t *testing.T, l *Log, id string, backlog int64) (stdout, stderr *os.File) {
	t.Helper()
	return attachKeep(t, l, id, Keep{Backlog: backlog, Total: 8 << 30})
}

func attachKeep(t *testing.T, l *Log, id string, keep Keep) (stdout, stderr *os.File) {
	t.Helper()
	var ends [4]*os.File
	for i := 0; i < 4; i += 2 {
		var err error
		if ends[i], ends[i+1], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[i].Close() })
	}
	if err := l.Attach(id, ends[1], ends[3], keep); err != nil {
		t.Fatal(err)
	}
	return ends[0], ends[2]
}

// roomy is NewBacklogs on a file system that has room to spare, however full the machine is.
func roomy(dir string) *Backlogs {
	b := NewBacklogs(dir)
	b.room = func(string) error { return nil }
	return b
}

// numbered is n bytes of lines that differ.
func numbered(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%063d\n", i)
	}
	return b.Bytes()[:n]
}

// TestAClientThatDoesNotReadIsCutOffAndTold: it gets a beginning without a gap, and the reason, once; another client
// and the log get all, and what was kept is given back.
func TestAClientThatDoesNotReadIsCutOffAndTold(t *testing.T) {
	full := t.TempDir()
	if os.Geteuid() == 0 {
		if err := unix.Mount("tmpfs", full, "tmpfs", 0, "size=3m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(full, 0); err != nil {
				t.Errorf("what was kept is still there: %v", err)
			}
		})
	}
	for name, tc := range map[string]struct {
		dir     string
		backlog int64
		want    string
	}{
		"more than its backlog":          {t.TempDir(), 1 << 20, "no more than 1048576 bytes are kept for it"},
		"no room in the file system":     {full, 1 << 30, "less than a 10th of the file system of " + full},
		"and an upgrade before it asked": {t.TempDir(), 1 << 20, "no more than 1048576 bytes are kept for it"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.dir == full {
				asroot.Need(t, "mount a small file system")
			}
			path := filepath.Join(t.TempDir(), "log")
			backlogs := roomy(tc.dir)
			if tc.dir == full {
				backlogs = NewBacklogs(tc.dir)
			}
			l := New(path, backlogs, quiet())
			want := numbered(4 << 20)
			stdout, stderr := attach(t, l, "slow", tc.backlog)
			var good bytes.Buffer
			read := make(chan error, 1)
			if tc.dir != full { // there is no room for others either
				goodOut, _ := attach(t, l, "good", 1<<30)
				go func() { _, err := io.Copy(&good, goodOut); read <- err }()
			}

			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			p, err := NewPump(l, Stdout, fds[0])
			if err != nil {
				t.Fatal(err)
			}
			p.Start()
			w := os.NewFile(uintptr(fds[1]), "write")
			for at := 0; at < len(want); at += 64 << 10 {
				if _, err := w.Write(want[at : at+64<<10]); err != nil {
					t.Fatal(err)
				}
			}
			w.Close()
			<-p.Done()
			if strings.HasPrefix(name, "and an upgrade") {
				l = upgraded(t, l, tc.dir)
			}
			got, err := io.ReadAll(stdout)
			if err != nil || len(got) == len(want) || !bytes.HasPrefix(want, got) {
				t.Errorf("it got %d bytes: %v", len(got), err)
			}
			if got, err := io.ReadAll(stderr); err != nil || len(got) > 0 {
				t.Errorf("it got %d bytes of stderr: %v", len(got), err)
			}
			err = l.Detach("slow")
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "writes to stdout") {
				t.Errorf("it is told %v, want %q", err, tc.want)
			}
			if err := l.Detach("slow"); err != nil {
				t.Errorf("told again: %v", err)
			}
			l.Finish()
			if tc.dir != full {
				if err := <-read; err != nil || !bytes.Equal(good.Bytes(), want) {
					t.Errorf("who reads got %d bytes: %v", good.Len(), err)
				}
				if err := l.Detach("good"); err != nil {
					t.Errorf("who reads is told %v", err)
				}
			}
			if text, _ := contents(t, path); text != string(want) {
				t.Errorf("the log has %d bytes of %d", len(text), len(want))
			}
			l.Close()
		})
	}
}

// upgraded is the log as it is after an upgrade of the keeper.
func upgraded(t *testing.T, l *Log, dir string) *Log {
	t.Helper()
	l.Stop()
	l = restored(t, l, dir)
	l.Start()
	return l
}

// restored is a stopped log as the next program has it before it goes on.
func restored(t *testing.T, l *Log, dir string) *Log {
	t.Helper()
	saved, err := l.Save()
	if err != nil {
		t.Fatal(err)
	}
	// An execve leaves one owner of each descriptor, here there are two.
	own := func(fd *int) {
		if *fd < 0 {
			return
		}
		if *fd, err = unix.FcntlInt(uintptr(*fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			t.Fatal(err)
		}
	}
	own(&saved.FD)
	for _, queues := range saved.Clients {
		for i := range queues {
			own(&queues[i].FD)
			own(&queues[i].Spill)
		}
	}
	for _, c := range l.clients {
		for _, q := range c.queues {
			q.kill()
			q.stopping = false
			q.end()
		}
	}
	l.Close()
	return Restore(saved, roomy(dir), quiet())
}

// TestOutputWhileClientsAreStoppedComesLast: what a pump brings before the clients go on comes after what they have not
// taken, over an upgrade and one that failed. Seen to fail, with one piece in the place of another, where such output
// goes to memory though there is some in the file; and with a gap where Start begins the work on the file a second
// time.
func TestOutputWhileClientsAreStoppedComesLast(t *testing.T) {
	for name, next := range map[string]func(*testing.T, *Log, string) *Log{
		"upgraded": restored,
		"failed":   func(_ *testing.T, l *Log, _ string) *Log { return l },
	} {
		for _, later := range []int{1 << 10, 64 << 10, 2 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, later), func(t *testing.T) {
				dir := t.TempDir()
				l := New("", roomy(dir), quiet())
				stdout, _ := attach(t, l, "slow", 64<<20)
				const before = 1 << 20
				want := numbered(before + later)
				for at := 0; at < before; at += 64 << 10 {
					l.feed(Stdout, want[at:at+64<<10])
				}
				l.Stop()
				l = next(t, l, dir)
				for at := before; at < len(want); at += 64 << 10 {
					l.feed(Stdout, want[at:min(at+64<<10, len(want))])
				}
				l.Start()
				l.Finish()
				got, err := io.ReadAll(stdout)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("it got %d bytes of %d, or others: %v, %v", len(got), len(want), err, l.Detach("slow"))
				}
				l.Close()
			})
		}
	}
}

// TestAClientThatNeverCatchesUpIsKept: what counts is how far it is behind, not how much has passed through the file.
func TestAClientThatNeverCatchesUpIsKept(t *testing.T) {
	if testing.Short() {
		t.Skip("moves many bytes: run without -short")
	}
	const backlog, lag, all = 4 << 20, 2 << 20, 32 << 20
	dir := t.TempDir()
	l := New("", roomy(dir), quiet())
	stdout, _ := attach(t, l, "slow", backlog)
	want := numbered(all)
	var got []byte
	piece := make([]byte, 64<<10)
	for at := 0; at < all; at += len(piece) {
		if at == all/2 { // and the count goes through an upgrade
			l = upgraded(t, l, dir)
		}
		l.feed(Stdout, want[at:at+len(piece)])
		for len(got) < at-lag {
			n, err := stdout.Read(piece)
			if err != nil {
				t.Fatalf("after %d bytes: %v; %v", len(got), err, l.Detach("slow"))
			}
			got = append(got, piece[:n]...)
		}
		if at%(1<<20) == 0 {
			if taken := onDisk(t, l); taken > backlog+spillStep {
				t.Fatalf("%d bytes are taken for a client that is %d behind", taken, lag)
			}
		}
	}
	l.Finish()
	rest, err := io.ReadAll(stdout)
	if got = append(got, rest...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("it got %d bytes of %d: %v", len(got), all, err)
	}
	if err := l.Detach("slow"); err != nil {
		t.Error(err)
	}
}

// TestAnAttachMadeTwiceClosesItsFiles: a call that is made again, after a connection broke, leaves no descriptor
// behind, and closes none that has another's number by now.
func TestAnAttachMadeTwiceClosesItsFiles(t *testing.T) {
	l := New("", roomy(t.TempDir()), slog.New(slog.DiscardHandler))
	first, _ := attach(t, l, "a", 0)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := l.Attach("a", w, nil, Keep{}); !errors.Is(err, os.ErrExist) {
		t.Fatalf("attached twice: %v", err)
	}
	if err := w.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the caller's file is open: %v", err)
	}
	_ = r.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a duplicate is open: %v", err)
	}
	l.feed(Stdout, []byte("x"))
	l.Close()
	if got, err := io.ReadAll(first); err != nil || string(got) != "x" {
		t.Errorf("the first client has read %q", got)
	}
}
