package quota

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/internal/lease/leasetest"
)

// TestALeaseHoldsNoMarkUp: a container may hold leases of its files, each of which holds up an open for 45 s. A context
// ends the wait. Seen to fail with a plain open.
func TestALeaseHoldsNoMarkUp(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	// Only files of a project that none has: each is opened, on a file system without quotas too.
	const none = MinID
	if err := mark(t.Context(), dir, 0, none); err != nil {
		t.Skip("the file system has no attributes of this kind:", err)
	}
	end := leasetest.Hold(t, file)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	if err := mark(ctx, dir, 0, none); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a lease: %v", err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	time.AfterFunc(200*time.Millisecond, end)
	if err := mark(t.Context(), dir, 0, none); err != nil {
		t.Errorf("when the lease is given up: %v", err)
	}
}

// TestFilesWithLeasesAreMarkedWhenTheseEnd, and the others at once.
func TestFilesWithLeasesAreMarkedWhenTheseEnd(t *testing.T) {
	onEach(t, func(t *testing.T, root string) {
		dir := folder(t, root, "dir")
		leased, other := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		for _, file := range []string{leased, other} {
			if err := os.WriteFile(file, []byte("content"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		project := func(file string, want uint32) {
			t.Helper()
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var a attributes
			if err := ioctl(int(f.Fd()), getAttributes, &a); err != nil || a.project != want {
				t.Errorf("%s has project %d and not %d: %v", filepath.Base(file), a.project, want, err)
			}
		}
		end := leasetest.Hold(t, leased)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := mark(ctx, dir, MinID, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a lease: %v", err)
		}
		project(other, MinID)
		time.AfterFunc(200*time.Millisecond, end)
		if err := mark(t.Context(), dir, MinID+1, 0); err != nil {
			t.Error(err)
		}
		project(leased, MinID+1)
		project(other, MinID+1)
	})
}
