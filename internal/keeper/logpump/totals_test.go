package logpump

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTotalsCountWhatIsInLogs: the bytes of records, long lines that were cut, and what could not be written.
func TestTotalsCountWhatIsInLogs(t *testing.T) {
	write := func(path, text string) Totals {
		t.Helper()
		before := Total()
		log := New(path, NewBacklogs(t.TempDir()), slog.New(slog.DiscardHandler))
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		fd, err := unix.Dup(int(r.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPump(log, Stdout, fd)
		if err != nil {
			t.Fatal(err)
		}
		p.Start()
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		w.Close()
		<-p.Done()
		log.Close()
		now := Total()
		return Totals{Bytes: now.Bytes - before.Bytes, Cut: now.Cut - before.Cut, Dropped: now.Dropped - before.Dropped}
	}
	path := filepath.Join(t.TempDir(), "log")
	got := write(path, "short\n"+strings.Repeat("x", 2*MaxLine+1)+"\n")
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Totals{Bytes: uint64(st.Size()), Cut: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got = write(filepath.Join(t.TempDir(), "missing", "log"), "short\n")
	if got.Bytes != 0 || got.Cut != 0 || got.Dropped == 0 {
		t.Errorf("of a log that cannot be written: %+v", got)
	}
}
