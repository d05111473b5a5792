package inroot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/lease/leasetest"
)

// TestALeaseOfAFileHoldsNobodyUp. Seen to fail with a plain open, which waits for 45 s.
func TestALeaseOfAFileHoldsNobodyUp(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "config"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	leasetest.Hold(t, filepath.Join(root, "config"))
	begin := time.Now()
	if _, err := File(root, "config", 100); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a file of which another process holds a lease: %v", err)
	}
	if took := time.Since(begin); took > 2*leaseWait {
		t.Errorf("it took %s", took)
	}
}
