package fdtable

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// size is how many descriptors there is room for.
func size(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "FDSize:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("there is no FDSize")
	return 0
}

func open(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestThereIsRoomForDescriptors(t *testing.T) {
	before := open(t)
	if got := size(t); got >= 1000 {
		t.Skipf("there is room for %d already", got)
	}
	if err := Reserve(1000); err != nil {
		t.Fatal(err)
	}
	if got := size(t); got < 1000 {
		t.Errorf("there is room for %d, want 1000", got)
	}
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}

func TestNoMoreThanTheLimitIsReserved(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: 2000, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) })
	for range 2 {
		if err := Reserve(1 << 20); err != nil {
			t.Error(err)
		}
	}
	if got := size(t); got < 1024 || got > 2048 {
		t.Errorf("there is room for %d", got)
	}
}
