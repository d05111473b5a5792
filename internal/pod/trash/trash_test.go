package trash

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
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

// enlarge makes a directory one that Await waits for.
func enlarge(t *testing.T, dir string) {
	t.Helper()
	fill(t, dir)
	for i := range largeFiles {
		if err := os.WriteFile(filepath.Join(dir, "upper", strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheSpaceOfALargeDirectoryIsAwaited, and that of a small one is not: there may be many of those, and their clients
// are not to wait. Seen to fail without the wait, and where each directory is large.
func TestTheSpaceOfALargeDirectoryIsAwaited(t *testing.T) {
	tr, dir, background := newTrash(t)
	really := tr.remove
	let := make(chan struct{})
	tr.remove = func(ctx context.Context, dir string) error {
		<-let
		return really(ctx, dir)
	}
	background.Go(tr.Empty)
	large, few, small := dir+"-large", dir+"-few", dir+"-small"
	enlarge(t, large)
	fill(t, few)
	if err := os.WriteFile(filepath.Join(few, "upper", "data"), make([]byte, largeBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	fill(t, small)
	for _, dir := range []string{small, large, few} {
		if err := tr.Discard(dir); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	tr.Await(t.Context(), filepath.Base(small), "another")
	if took := time.Since(began); took > patience/2 {
		t.Errorf("a small directory was waited for, %v", took)
	}
	short, cancel := context.WithTimeout(t.Context(), margin+100*time.Millisecond)
	defer cancel()
	tr.Await(short, filepath.Base(large))
	if left := time.Until(deadline(short)); left < margin/2 || left > margin {
		t.Errorf("%v are left of the call after the wait for a directory that is not removed", left)
	}
	time.AfterFunc(200*time.Millisecond, func() { close(let) })
	tr.Await(t.Context(), filepath.Base(large), filepath.Base(few))
	if n := entries(t, tr.dir); n > 1 { // the small one
		t.Errorf("%d directories are left after the wait", n)
	}
	if took := time.Since(began); took >= patience {
		t.Errorf("the wait has ended by its limit, after %v", took)
	}
	awaitEmpty(t, tr)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.large)+len(tr.busy) > 0 {
		t.Errorf("kept are %v, %v", tr.large, tr.busy)
	}
}

func deadline(ctx context.Context) time.Time {
	end, _ := ctx.Deadline()
	return end
}

// TestADirectoryThatIsRemovedSlowlyKeepsNoOther: seen to fail where one was removed after the other.
func TestADirectoryThatIsRemovedSlowlyKeepsNoOther(t *testing.T) {
	tr, dir, background := newTrash(t)
	really, began, let := tr.remove, make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	tr.remove = func(ctx context.Context, dir string) error {
		if calls.Add(1) == 1 {
			close(began)
			<-let
		}
		return really(ctx, dir)
	}
	background.Go(tr.Empty)
	for i := range 10 {
		fill(t, dir)
		if err := tr.Discard(dir); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			<-began
		}
	}
	for end := time.Now().Add(10 * time.Second); entries(t, tr.dir) > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%d directories wait for one", entries(t, tr.dir)-1)
			break
		}
	}
	close(let)
	awaitEmpty(t, tr)
}
