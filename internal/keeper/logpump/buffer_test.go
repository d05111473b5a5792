package logpump

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that is killed between any two steps of a pump leaves a buffer with which the next one loses nothing, and
// writes nothing twice. Each case fails with what it is about taken out of openBuffer or recoverBuffer.
func TestBufferOfAProcessThatWasKilled(t *testing.T) {
	const text = "first\nsecond\nthe third's beginning "
	record := func(tag, line string) string {
		return "2026-01-02T03:04:05.000000000Z stdout " + tag + " " + line + "\n"
	}
	// splice takes all of the text into the relay.
	splice := func(t *testing.T, b *buffer, pipe int) {
		n, err := unix.Splice(pipe, nil, b.relayFD, nil, 1<<10, unix.SPLICE_F_NONBLOCK)
		if err != nil || int(n) != len(text) {
			t.Fatalf("splice: %d, %v", n, err)
		}
	}
	read := func(t *testing.T, b *buffer, n int) {
		if got, err := unix.Read(b.relayFD, b.mem[b.pos:b.pos+n]); err != nil || got != n {
			t.Fatalf("read: %d, %v", got, err)
		}
	}
	fill := func(t *testing.T, b *buffer, pipe int) {
		if got, err := b.fill(pipe, readSize); err != nil || string(got) != text {
			t.Fatalf("fill: %q, %v", got, err)
		}
	}
	// writing is a write of the two whole lines, of which a part is in the file.
	both := record("F", "first") + record("F", "second")
	writing := func(part int) func(*testing.T, *buffer, int, *os.File) {
		return func(t *testing.T, b *buffer, pipe int, log *os.File) {
			fill(t, b, pipe)
			var st unix.Stat_t
			if err := unix.Fstat(int(log.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			b.begin(&st, len(both), mark(bufferBase+len("first\nsecond\n"), false))
			if _, err := log.WriteString(both[:part]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, killed := range map[string]func(t *testing.T, b *buffer, pipe int, log *os.File){
		"before it reads":   func(*testing.T, *buffer, int, *os.File) {},
		"text in the relay": func(t *testing.T, b *buffer, pipe int, _ *os.File) { splice(t, b, pipe) },
		"about to read":     func(t *testing.T, b *buffer, pipe int, _ *os.File) { splice(t, b, pipe); b.reading(len(text)) },
		"half of it read": func(t *testing.T, b *buffer, pipe int, _ *os.File) {
			splice(t, b, pipe)
			b.reading(len(text))
			read(t, b, 9)
		},
		"all of it read": func(t *testing.T, b *buffer, pipe int, _ *os.File) {
			splice(t, b, pipe)
			b.reading(len(text))
			read(t, b, len(text))
		},
		"read and noted":   func(t *testing.T, b *buffer, pipe int, _ *os.File) { fill(t, b, pipe) },
		"about to write":   writing(0),
		"a part written":   writing(len(both) - 3),
		"a record written": writing(len(record("F", "first"))),
		"all written":      writing(len(both)),
		"written and noted": func(t *testing.T, b *buffer, pipe int, log *os.File) {
			writing(len(both))(t, b, pipe, log)
			b.put(b.h.next)
		},
		"about to move": func(t *testing.T, b *buffer, pipe int, log *os.File) {
			writing(len(both))(t, b, pipe, log)
			b.put(b.h.next)
			rest := copy(b.mem[bufferBase:], b.rest())
			b.h.move = uint64(rest) + 1
		},
		"half moved": func(t *testing.T, b *buffer, pipe int, log *os.File) {
			writing(len(both))(t, b, pipe, log)
			b.put(b.h.next)
			rest := copy(b.mem[bufferBase:], b.rest())
			b.h.move, b.h.read = uint64(rest)+1, uint64(rest)
		},
		"the beginning flushed": func(t *testing.T, b *buffer, pipe int, log *os.File) {
			writing(len(both))(t, b, pipe, log)
			b.put(b.h.next)
			if _, err := log.WriteString(record("P", "the third's beginning ")); err != nil {
				t.Fatal(err)
			}
			b.put(mark(b.pos, true))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			log, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o640)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			if _, err := log.WriteString(record("F", "before")); err != nil {
				t.Fatal(err)
			}
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			w := os.NewFile(uintptr(fds[1]), "write")
			if _, err := w.WriteString(text); err != nil {
				t.Fatal(err)
			}
			b, err := newBuffer()
			if err != nil {
				t.Fatal(err)
			}
			killed(t, b, fds[0], log)
			held := map[Role]int{}
			if err := b.control(func(role Role, fd int) {
				if held[role], err = unix.Dup(fd); err != nil {
					t.Fatal(err)
				}
			}); err != nil {
				t.Fatal(err)
			}
			b.close()
			l := New(path, roomy(t.TempDir()), quiet())
			p, err := AdoptPump(l, Stdout, fds[0], held)
			if err != nil {
				t.Fatal(err)
			}
			l.Recover(nil, p)
			p.Start()
			if _, err := w.WriteString("and end\n"); err != nil {
				t.Fatal(err)
			}
			w.Close()
			<-p.Done()
			if got, _ := contents(t, path); got != "before\n"+text+"and end\n" {
				t.Errorf("the log has %q", got)
			}
		})
	}
}

// Where the file has another name or has been emptied meanwhile, nobody knows what is in the old one: it is written
// again.
func TestFileThatIsAnotherGetsWhatWasBeingWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	l, p, w := pump(t, path)
	fmt.Fprintln(w, "line")
	for st, err := os.Stat(path); err != nil || st.Size() == 0; st, err = os.Stat(path) {
		time.Sleep(time.Millisecond)
	}
	p.Stop()
	p.buf.h.done, p.buf.h.writing, p.buf.h.next = 0, 1, mark(bufferBase+5, false)
	p.buf.pos = bufferBase + 5
	copy(p.buf.mem[bufferBase:], "line\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	const other = "2026-01-02T03:04:05.000000000Z stderr F of another pump\n"
	if _, err := l.file.WriteString(other); err != nil {
		t.Fatal(err)
	}
	l.Recover(nil, p)
	p.Start()
	w.Close()
	<-p.Done()
	if got, _ := contents(t, path); got != "of another pump\nline\n" {
		t.Errorf("the new file has %q", got)
	}
}

// A container that is silent takes a page for each stream, whatever it has written before. With trim taken out it takes
// all.
func TestIdleBufferKeepsOnePage(t *testing.T) {
	blocks := func(b *buffer) int64 {
		var st unix.Stat_t
		if err := unix.Fstat(b.fd, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	_, p, w := pump(t, filepath.Join(t.TempDir(), "log"))
	defer w.Close()
	if n := blocks(p.buf); n > idleBuffer {
		t.Errorf("before anything is written it has %d bytes", n)
	}
	for range 100 {
		fmt.Fprint(w, strings.Repeat(strings.Repeat("x", 99)+"\n", 1000))
	}
	fmt.Fprint(w, "a beginning")
	for limit := time.Now().Add(time.Minute); blocks(p.buf) > idleBuffer; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d bytes are kept", blocks(p.buf))
		}
	}
}
