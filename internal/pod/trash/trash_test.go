package trash

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/asroot"
)

// newTrash is an empty trash, a directory beside it, and a group of goroutines that end with the test.
func newTrash(t *testing.T) (tr *Trash, beside string, background *sync.WaitGroup) {
	t.Helper()
	top := t.TempDir()
	dir := filepath.Join(top, "trash")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	tr = New(ctx, dir, slog.New(slog.DiscardHandler))
	background = new(sync.WaitGroup)
	t.Cleanup(func() {
		cancel()
		background.Wait()
	})
	return tr, filepath.Join(top, "beside"), background
}

// fill makes a directory with a file in a directory.
func fill(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "upper"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"container.json", "upper/file"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// awaitEmpty waits until nothing is in the trash.
func awaitEmpty(t *testing.T, tr *Trash) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); entries(t, tr.dir) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d directories are still in the trash", entries(t, tr.dir))
		}
	}
}

func TestWhatIsDiscardedIsOutOfSightAtOnceAndRemovedLater(t *testing.T) {
	tr, dir, background := newTrash(t)
	for range 2 {
		fill(t, dir)
		if err := tr.Discard(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("the directory is there: %v", err)
		}
	}
	if n := entries(t, tr.dir); n != 2 {
		t.Errorf("%d directories are in the trash before it is emptied", n)
	}
	if err := tr.Discard(dir); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
	background.Go(tr.Empty) // what was there before, as after a crash
	awaitEmpty(t, tr)
	fill(t, dir)
	if err := tr.Discard(dir); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, tr)
}

// TestOnAFullDiskADirectoryIsRemovedWhereItIs: the trash has no room for its name there.
func TestOnAFullDiskADirectoryIsRemovedWhereItIs(t *testing.T) {
	tr, dir, _ := newTrash(t)
	fill(t, dir)
	if err := tr.removeInPlace(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is there: %v", err)
	}
}

// TestOnAnotherDiskADirectoryIsRemovedWhereItIs: the volumes may have a disk of their own. Seen to fail where no volume
// there could be removed.
func TestOnAnotherDiskADirectoryIsRemovedWhereItIs(t *testing.T) {
	asroot.Need(t, "mounts")
	tr, volumes, _ := newTrash(t)
	if err := os.Mkdir(volumes, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("disk", volumes, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(volumes, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(volumes, "v")
	fill(t, dir)
	if err := tr.Discard(dir); err != nil {
		t.Error(err)
	}
	if n := entries(t, volumes) + entries(t, tr.dir); n != 0 {
		t.Errorf("%d directories are left", n)
	}
}

// A directory may come here with a mount in it, when both tries to unmount have failed. It goes nevertheless, and what
// is mounted stays. It was seen to stay in the trash for good.
func TestAMountInADiscardedDirectoryIsDetached(t *testing.T) {
	asroot.Need(t, "mounts")
	tr, dir, background := newTrash(t)
	fill(t, dir)
	other := t.TempDir()
	fill(t, other)
	at := filepath.Join(dir, "images", "0", "rootfs")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := unix.Mount(other, at, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Discard(dir); err != nil {
		t.Fatal(err)
	}
	background.Go(tr.Empty)
	awaitEmpty(t, tr)
	if entries(t, other) != 2 {
		t.Error("what was mounted has been removed")
	}
}

// TestWhatCannotBeRemovedNowIsRemovedLater: nobody may discard anything for a long time after that. Seen to fail where
// only the next Discard had it tried again.
func TestWhatCannotBeRemovedNowIsRemovedLater(t *testing.T) {
	tr, dir, background := newTrash(t)
	fill(t, dir)
	var tries atomic.Int64
	really := tr.remove
	tr.remove = func(ctx context.Context, dir string) error {
		if tries.Add(1) < 3 {
			return unix.ENOTEMPTY
		}
		return really(ctx, dir)
	}
	background.Go(tr.Empty)
	if err := tr.Discard(dir); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, tr)
}

// TestWhatIsDiscardedAtTheEndIsRemoved: a call that berthd's end has cut off puts aside what it has made. Seen to fail
// where Empty returned at once: it stayed until the next start.
func TestWhatIsDiscardedAtTheEndIsRemoved(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "trash")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	tr := New(ctx, dir, slog.New(slog.DiscardHandler))
	fill(t, filepath.Join(top, "beside"))
	cancel()
	if err := tr.Discard(filepath.Join(top, "beside")); err != nil {
		t.Fatal(err)
	}
	tr.Empty()
	if n := entries(t, dir); n > 0 {
		t.Errorf("%d directories are still in the trash", n)
	}
}
