package wholefile

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/state"
)

// TestAFileIsWrittenWhereThereIsNoRoomForTwo: over the one that is there, and a new one leaves nothing. Seen to fail
// without the writing over, and without the removal of what is half written.
func TestAFileIsWrittenWhereThereIsNoRoomForTwo(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=8k"); err != nil {
		t.Skipf("to mount a file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "row.json")
	if err := Write(path, []byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 64<<10), 0o600); !state.Full(err) {
		t.Fatal(err)
	}
	if err := Write(path, []byte("the second")); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "the second" {
		t.Errorf("it holds %q, %v", got, err)
	}
	if err := Write(filepath.Join(dir, "new.json"), []byte("new")); !state.Full(err) {
		t.Errorf("a new one: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}
