package lease_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/lease"
	"berth/internal/lease/leasetest"
)

// TestAnOpenWaitsForALeaseNoLongerThanItsLimit, nor than its context, and succeeds as soon as the lease is given up. An
// open without O_NONBLOCK waits for 45 s. Seen to fail without the limit, and without the context.
func TestAnOpenWaitsForALeaseNoLongerThanItsLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	end := leasetest.Hold(t, path)
	open := func(ctx context.Context, limit time.Duration) error {
		begin := time.Now()
		fd, err := lease.Open(ctx, limit, func() (int, error) {
			return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		})
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	if err := open(t.Context(), 200*time.Millisecond); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("with a limit: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := open(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a context: %v", err)
	}
	time.AfterFunc(200*time.Millisecond, end)
	if err := open(t.Context(), time.Minute); err != nil {
		t.Errorf("when the lease is given up: %v", err)
	}
}
