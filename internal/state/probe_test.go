package state

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAProbeOfARootThatBecomesReadOnly(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("to mount a file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	p := NewProbe(dir)
	if err := p.Unwritable(t.Context()); err != nil {
		t.Errorf("at first: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := p.Unwritable(t.Context()); err != nil {
		t.Errorf("it writes again at once: %v", err)
	}
	p.Suspect(os.ErrNotExist)
	if err := p.Unwritable(t.Context()); err != nil {
		t.Errorf("it writes again after an error of no file system: %v", err)
	}
	p.Suspect(&os.PathError{Op: "mkdir", Path: dir, Err: unix.EROFS})
	for range 2 {
		if err := p.Unwritable(t.Context()); err == nil {
			t.Error("a read-only file system takes writes")
		}
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), dir+" takes no writes") {
		t.Errorf("a read-only root is locked: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	if err := p.Unwritable(t.Context()); err != nil {
		t.Errorf("when it takes writes again: %v", err)
	}
}

// TestAProbeDoesNotWaitForADiskThatHangs: the write that hangs is the only one, and what it becomes is known later.
func TestAProbeDoesNotWaitForADiskThatHangs(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "health"), 0o700); err != nil {
		t.Fatal(err)
	}
	// A write to a FIFO waits for a reader.
	fifo := filepath.Join(dir, "health", "check.json"+spare)
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p := NewProbe(dir)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 1)
		if err := p.Unwritable(ctx); err != nil {
			t.Errorf("a disk that hangs: %v", err)
		}
		cancel()
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	_ = p.Write(t.Context()) // it ends
}
