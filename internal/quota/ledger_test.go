package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/quota/quotatest"
	"berth/internal/rootfs"
)

// onEach runs a test on each kind of file system that has project quotas.
func onEach(t *testing.T, test func(t *testing.T, dir string)) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) { test(t, quotatest.Mount(t, kind, "prjquota")) })
	}
}

func ledger(t *testing.T, dir string) *Ledger {
	t.Helper()
	l, err := Open(context.Background(), filepath.Join(dir, "quotas"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func folder(t *testing.T, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// fill writes MiB into a file as somebody without privileges, who gets to feel the limit, and returns how many
// there are then.
func fill(t *testing.T, path string, mib int) (written int64, err error) {
	t.Helper()
	f, err := os.Create(path) // nobody else may come as far as here
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var said strings.Builder
	cmd := exec.Command("dd", "if=/dev/zero", "bs=1M", fmt.Sprintf("count=%d", mib), "conv=fsync")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	cmd.Stdout, cmd.Stderr = f, &said
	if err = cmd.Run(); err != nil {
		err = errors.New(said.String())
	}
	info, statErr := f.Stat()
	if statErr != nil {
		t.Fatal(statErr)
	}
	return info.Size(), err
}

// refused says whether a write was refused for want of room.
func refused(err error) bool {
	return errors.Is(err, unix.ENOSPC) ||
		err != nil && (strings.Contains(err.Error(), "quota exceeded") || strings.Contains(err.Error(), "No space left"))
}

func take(t *testing.T, l *Ledger, holder string, w Want) *Grant {
	t.Helper()
	g, err := l.Take(context.Background(), holder, w)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func markAll(t *testing.T, l *Ledger, g *Grant, dirs ...string) {
	t.Helper()
	if err := l.Mark(context.Background(), g.ID, dirs...); err != nil {
		t.Fatal(err)
	}
}

// free waits until an ID is given to nobody, and says what is wrong with what is left of it.
func free(t *testing.T, l *Ledger, dir string, id uint32) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		g := l.grants[id]
		l.mu.Unlock()
		if g == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("project %d is not free: %+v", id, g)
		}
	}
	if used, err := Read(dir, id); err != nil || used.Limit != 0 {
		t.Errorf("project %d, which is free, has %+v, %v", id, used, err)
	}
	if left, err := filepath.Glob(filepath.Join(l.records.Dir, "*")); err != nil ||
		strings.Contains(strings.Join(left, " "), recordName(id)) {
		t.Errorf("records: %v, %v", left, err)
	}
}

func TestWithoutProjectQuotasTheFileSystemIsNamed(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "berth-quota-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	for kind, says := range map[string]string{"ext4": "tune2fs", "xfs": "mount it with the option prjquota",
		"tmpfs": "need ext4 or xfs"} {
		t.Run(kind, func(t *testing.T) {
			dir := shm
			if kind != "tmpfs" {
				dir = quotatest.Mount(t, kind, "rw")
			}
			_, err := ledger(t, dir).Take(context.Background(),
				"c", Want{Limit: 1 << 20, Dirs: []string{filepath.Join(dir, "not/yet/there")}})
			if !errdefs.IsFailedPrecondition(err) {
				t.Fatalf("%v is not FailedPrecondition", err)
			}
			for _, want := range []string{kind + " on ", says, "prjquota"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if kind != "tmpfs" && !strings.Contains(err.Error(), dir) {
				t.Errorf("%q does not say where: %s", err, dir)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "quotas", "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestALimitHoldsAndIsSeen(t *testing.T) {
	onEach(t, func(t *testing.T, root string) {
		l := ledger(t, root)
		one, two := folder(t, root, "one"), folder(t, root, "two")
		folder(t, one, "before")
		if _, err := fill(t, filepath.Join(one, "before/file"), 3); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/etc/passwd", filepath.Join(one, "link")); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(filepath.Join(one, "pipe"), 0o600); err != nil {
			t.Fatal(err)
		}
		g := take(t, l, "c", Want{Limit: 8 << 20, Dirs: []string{one, two}})
		markAll(t, l, g, one, two)
		if used, err := Read(root, g.ID); err != nil || used.Bytes < 3<<20 || used.Limit != 8<<20 {
			t.Errorf("what was there before is not counted: %+v, %v", used, err)
		}
		for _, dir := range []string{one, two} {
			var fs unix.Statfs_t
			if err := unix.Statfs(dir, &fs); err != nil || fs.Blocks*uint64(fs.Bsize) != 8<<20 {
				t.Errorf("df of %s says %d bytes, %v", dir, fs.Blocks*uint64(fs.Bsize), err)
			}
		}
		folder(t, two, "deep/er")
		if n, err := fill(t, filepath.Join(two, "deep/er/file"), 20); !refused(err) || n > 5<<20 {
			t.Errorf("%d bytes were written beyond the limit: %v", n, err)
		}
		if _, err := fill(t, filepath.Join(one, "more"), 20); !refused(err) {
			t.Errorf("the directories do not share: %v", err)
		}
		if _, err := fill(t, filepath.Join(folder(t, root, "other"), "file"), 20); err != nil {
			t.Errorf("what has no limit is limited: %v", err)
		}
		if found, err := l.Resize("c", one, 40<<20); !found || err != nil {
			t.Errorf("resize: %v, %v", found, err)
		}
		if _, err := fill(t, filepath.Join(one, "more"), 20); err != nil {
			t.Errorf("after the limit was raised: %v", err)
		}
		l.Release("c")
		free(t, l, root, g.ID)
		for _, dir := range []string{one, two, filepath.Join(two, "deep/er")} {
			if id, err := Project(dir); err != nil || id != 0 {
				t.Errorf("%s still has project %d, %v", dir, id, err)
			}
		}
		if used, err := Read(root, g.ID); err != nil || used.Inodes > 0 {
			t.Errorf("files still have the ID: %+v, %v", used, err)
		}
		if _, err := fill(t, filepath.Join(one, "again"), 50); err != nil {
			t.Errorf("after the release: %v", err)
		}
	})
}

// TestARootFileSystemIsLimited is about overlayfs: it shows the limit of its writable layer, and keeps it for root too.
func TestARootFileSystemIsLimited(t *testing.T) {
	onEach(t, func(t *testing.T, root string) {
		l := ledger(t, root)
		dir := filepath.Join(root, "c")
		lower := folder(t, root, "lower")
		if err := os.WriteFile(filepath.Join(lower, "big"), make([]byte, 6<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		at, err := rootfs.Mount(context.Background(), rootfs.Options{Dir: dir, Lowers: []string{lower}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := rootfs.Remove(context.Background(), dir); err != nil {
				t.Error(err)
			}
		}()
		dirs := rootfs.WritableDirs(dir)
		g := take(t, l, "c", Want{Limit: 8 << 20, Dirs: dirs})
		markAll(t, l, g, dirs...)
		var fs unix.Statfs_t
		if err := unix.Statfs(at, &fs); err != nil || fs.Blocks*uint64(fs.Bsize) != 8<<20 {
			t.Errorf("df says %d bytes, %v", fs.Blocks*uint64(fs.Bsize), err)
		}
		// A part of the image that is written to is copied up.
		f, err := os.OpenFile(filepath.Join(at, "big"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if used, err := Read(root, g.ID); err != nil || used.Bytes < 6<<20 {
			t.Errorf("what was copied up is not counted: %+v, %v", used, err)
		}
		err = os.WriteFile(filepath.Join(at, "new"), make([]byte, 20<<20), 0o644)
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			t.Errorf("root writes beyond the limit: %v", err)
		}
		// Renames within the layer, and between it and where overlayfs works, stay renames.
		if err := os.Rename(filepath.Join(at, "big"), filepath.Join(at, "renamed")); err != nil {
			t.Error(err)
		}
		if err := os.Remove(filepath.Join(at, "renamed")); err != nil {
			t.Error(err)
		}
	})
}

func TestNoIDIsGivenTwice(t *testing.T) {
	onEach(t, func(t *testing.T, root string) {
		l := ledger(t, root)
		// Somebody else has taken an ID of the range: one with files, one with a limit.
		other := folder(t, root, "other")
		if err := mark(context.Background(), other, MinID+1, 0); err != nil {
			t.Fatal(err)
		}
		if err := limit(root, MinID+2, 1<<20); err != nil {
			t.Fatal(err)
		}
		seen := map[uint32]bool{}
		trash := folder(t, root, "trash")
		for i := range 20 {
			holder := fmt.Sprint("c", i)
			dir := folder(t, root, holder)
			g := take(t, l, holder, Want{Limit: 1 << 20, Dirs: []string{dir}})
			markAll(t, l, g, dir)
			if seen[g.ID] || g.ID == MinID+1 || g.ID == MinID+2 {
				t.Fatalf("project %d is given twice", g.ID)
			}
			seen[g.ID] = true
			if i%2 == 0 {
				// The files of a container go later than it does: until then the ID is in use.
				if err := os.Rename(dir, filepath.Join(trash, holder)); err != nil {
					t.Fatal(err)
				}
				l.Release(holder)
				free(t, l, root, g.ID)
			}
			l.next = MinID
		}
		// A ledger that is opened again, as after a crash, knows the same.
		again := ledger(t, root)
		again.Reconcile(func(string) bool { return true })
		if g := take(t, again, "after", Want{Dirs: []string{folder(t, root, "after")}}); seen[g.ID] {
			t.Errorf("after a restart project %d is given twice", g.ID)
		}
		if err := os.RemoveAll(trash); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if used, err := Read(root, MinID); err == nil && used == (Usage{}) { // xfs frees inodes in the background
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("project %d still has %+v, %v", uint32(MinID), used, err)
			}
		}
		again.next = MinID
		if g := take(t, again, "last", Want{Dirs: []string{folder(t, root, "last")}}); g.ID != MinID {
			t.Errorf("an ID that is free again is not given: got %d", g.ID)
		}
	})
}

// TestAHolderIsKnownUntilItHasGivenAllBack. Seen to fail where the first directory that was returned ended the search
// for the others.
func TestAHolderIsKnownUntilItHasGivenAllBack(t *testing.T) {
	l := ledger(t, t.TempDir())
	g := &Grant{ID: MinID, Limit: 1 << 20, Holders: map[string][]string{"c": {"/none/a", "/none/b"}}}
	if err := l.records.SaveTwice(recordName(g.ID), g); err != nil {
		t.Fatal(err)
	}
	l, err := Open(t.Context(), l.records.Dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Return("c", "/none/a")
	if held := l.Held("c"); len(held) != 1 || len(held[0].Holders["c"]) != 1 {
		t.Errorf("it has %v after it has returned one of two directories", held)
	}
	l.Release("c")
	if l.mayHold("c") || l.Held("c") != nil {
		t.Error("it has something after it has returned all")
	}
}

// TestAFileSystemThatHangsHoldsUpOnlyItsContainers: a limit cannot be set while a file system is frozen. Seen to fail
// where berthd waited for that when it started, and where the removal of each container did.
func TestAFileSystemThatHangsHoldsUpOnlyItsContainers(t *testing.T) {
	l := ledger(t, t.TempDir())
	for id, holder := range map[uint32]string{MinID: "frozen", MinID + 1: "gone", MinID + 2: "gone too"} {
		g := &Grant{ID: id, Limit: 1 << 20, Holders: map[string][]string{holder: {"/frozen"}}}
		if err := l.records.SaveTwice(recordName(id), g); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	waiting, goOn := make(chan struct{}), make(chan struct{})
	defer func(set func(string, uint32, uint64) error) { limit = set }(limit)
	var once sync.Once
	limit = func(string, uint32, uint64) error {
		once.Do(func() { close(waiting) })
		<-goOn
		return nil
	}
	l, err := Open(t.Context(), l.records.Dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer close(goOn)
	returns := func(what string, call func()) {
		t.Helper()
		returned := make(chan struct{})
		go func() { call(); close(returned) }()
		select {
		case <-returned:
		case <-time.After(time.Minute):
			t.Fatalf("%s waits for the file system", what)
		}
	}
	returns("Reconcile", func() { l.Reconcile(func(holder string) bool { return holder == "frozen" }) })
	<-waiting
	returns("the removal of another container", func() { l.Release("other") })
	returns("the status of another container", func() {
		if held := l.Held("other"); held != nil {
			t.Errorf("it has %v", held)
		}
	})
	returns("an update of another container", func() {
		if found, err := l.Resize("other", "/other", 1<<20); found || err != nil {
			t.Error(found, err)
		}
	})
	if !l.mayHold("frozen") || l.mayHold("gone") || l.mayHold("gone too") {
		t.Error("the container that lives has no quota any more, or the one that is gone has")
	}
}

func TestAnIDThatAClientChooses(t *testing.T) {
	onEach(t, func(t *testing.T, root string) {
		l := ledger(t, root)
		one, two, three := folder(t, root, "one"), folder(t, root, "two"), folder(t, root, "three")
		const id = MinID + 77
		want := Want{ID: ID{Number: id}, Limit: 8 << 20, Dirs: []string{one}}
		if g := take(t, l, "a", want); g.ID != id {
			t.Fatalf("got %d", g.ID)
		}
		want.Dirs = []string{two}
		markAll(t, l, take(t, l, "b", want), one, two)
		var held *HeldError
		_, err := l.Take(context.Background(), "c", Want{ID: ID{Number: id}, Limit: 9 << 20, Dirs: []string{three}})
		if !errors.As(err, &held) || !errdefs.IsFailedPrecondition(err) || len(held.Holders) != 2 {
			t.Errorf("one ID with two limits: %v", err)
		}
		if _, err := fill(t, filepath.Join(one, "f"), 6); err != nil {
			t.Error(err)
		}
		if _, err := fill(t, filepath.Join(two, "f"), 6); !refused(err) {
			t.Errorf("who share an ID do not share its limit: %v", err)
		}
		if _, err := l.Resize("a", one, 20<<20); !errors.As(err, &held) {
			t.Errorf("one of two changes the limit: %v", err)
		}
		l.Release("a")
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if has, err := Project(one); err == nil && has == 0 {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("%s still has project %d, %v", one, has, err)
			}
		}
		if has, err := Project(two); err != nil || has != id {
			t.Errorf("the one that stays has project %d, %v", has, err)
		}
		l.Release("b")
		free(t, l, root, id)
	})
}

func TestADirectoryHasOneLimit(t *testing.T) {
	onEach(t, func(t *testing.T, root string) {
		l := ledger(t, root)
		shared, alone := folder(t, root, "shared"), folder(t, root, "alone")
		want := Want{Limit: 8 << 20, Dirs: []string{shared}}
		first := take(t, l, "a", want)
		if second := take(t, l, "b", want); second.ID != first.ID {
			t.Errorf("one directory has two IDs: %d and %d", first.ID, second.ID)
		}
		var held *HeldError
		for claim, other := range map[string]Want{
			"another limit":    {Limit: 9 << 20, Dirs: []string{shared}},
			"together with it": {Limit: 8 << 20, Dirs: []string{shared, alone}},
			"another ID":       {Limit: 8 << 20, Dirs: []string{shared}, ID: ID{Number: MinID + 500}},
		} {
			if _, err := l.Take(context.Background(), "c", other); !errors.As(err, &held) {
				t.Errorf("%s: %v", claim, err)
			}
		}
		markAll(t, l, first, shared)
		if err := mark(context.Background(), alone, 5, 0); err != nil {
			t.Fatal(err)
		}
		g := take(t, l, "c", Want{Limit: 1 << 20, Dirs: []string{alone}})
		if err := l.Mark(context.Background(), g.ID, alone); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "project ID 5") {
			t.Errorf("a directory of another program's project: %v", err)
		}
		l.Release("c")
		free(t, l, root, g.ID)
		if has, err := Project(alone); err != nil || has != 5 {
			t.Errorf("another program's project is %d now, %v", has, err)
		}
		if _, err := l.Take(context.Background(),
			"c", Want{Limit: 1 << 20, Dirs: []string{alone, "/proc"}}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("two file systems share: %v", err)
		}
	})
}

// TestDirectoriesAreGivenBackOneByOne, and what their holder has beside them stays limited.
func TestDirectoriesAreGivenBackOneByOne(t *testing.T) {
	onEach(t, func(t *testing.T, root string) {
		l := ledger(t, root)
		kept, back := folder(t, root, "kept"), folder(t, root, "back")
		stays := take(t, l, "a", Want{Limit: 8 << 20, Dirs: []string{kept}})
		markAll(t, l, stays, kept)
		goes := take(t, l, "a", Want{Limit: 4 << 20, Dirs: []string{back}})
		markAll(t, l, goes, back)
		l.Return("a", back)
		free(t, l, root, goes.ID)
		if has, err := Project(back); err != nil || has != 0 {
			t.Errorf("the directory that was given back has project %d, %v", has, err)
		}
		if held := l.Held("a"); len(held) != 1 || held[0].ID != stays.ID || held[0].Limit != 8<<20 {
			t.Errorf("the holder has %+v", held)
		}
		if has, err := Project(kept); err != nil || has != stays.ID {
			t.Errorf("the directory that stays has project %d, %v", has, err)
		}
	})
}

// TestADirectoryThatCannotBeClearedIsNamed: a file in it is immutable. Take says so soon, and succeeds once the file is
// not. It was seen to fail where Take waits for the next start of berthd, and where a directory without an ID is taken
// for one that was cleared, files and all. On xfs, the project of an immutable file can be changed.
func TestADirectoryThatCannotBeClearedIsNamed(t *testing.T) {
	root := quotatest.Mount(t, "ext4", "prjquota")
	l := ledger(t, root)
	dir := folder(t, root, "dir")
	fixed, beside := filepath.Join(folder(t, dir, "below"), "fixed"), folder(t, root, "beside")
	if err := os.WriteFile(fixed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := Want{Limit: 8 << 20, Dirs: []string{dir, beside}}
	g := take(t, l, "a", want)
	markAll(t, l, g, dir, beside)
	immutable(t, fixed, true)
	defer immutable(t, fixed, false)
	l.Release("a")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 2 {
		if _, err := l.Take(ctx, "b", want); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), dir) ||
			!errors.Is(err, unix.EPERM) {
			t.Fatalf("a directory with an immutable file: %v", err)
		}
	}
	other := take(t, l, "c", Want{Limit: 1 << 20, Dirs: []string{beside}})
	if other.ID == g.ID {
		t.Error("an ID is given that a file has")
	}
	immutable(t, fixed, false)
	want.Dirs = want.Dirs[:1]
	if _, err := l.Take(ctx, "b", want); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(fixed)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var a attributes
	if err := ioctl(int(f.Fd()), getAttributes, &a); err != nil || a.project != 0 {
		t.Errorf("the file has project %d, %v", a.project, err)
	}
	free(t, l, root, g.ID)
}

// immutable sets or clears the flag of a file that chattr calls i.
func immutable(t *testing.T, path string, on bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if flags &^= unix.STATX_ATTR_IMMUTABLE; on { // the same bit as FS_IMMUTABLE_FL
		flags |= unix.STATX_ATTR_IMMUTABLE
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags))
	}
	if err != nil {
		t.Fatalf("immutable %s: %v", path, err)
	}
}

func TestWhatACrashLeavesIsCleared(t *testing.T) {
	onEach(t, func(t *testing.T, root string) {
		l := ledger(t, root)
		gone, half, kept := folder(t, root, "gone"), folder(t, root, "half"), folder(t, root, "kept")
		a := take(t, l, "gone", Want{Limit: 8 << 20, Dirs: []string{gone, filepath.Join(root, "removed")}})
		markAll(t, l, a, gone)
		b := take(t, l, "half", Want{Limit: 8 << 20, Dirs: []string{half}})
		markAll(t, l, b, half)
		c := take(t, l, "kept", Want{Limit: 8 << 20, Dirs: []string{kept}})
		markAll(t, l, c, kept)
		l.cancel() // a daemon that is killed clears nothing
		l.Release("half")
		l.work.Wait()
		if err := limit(root, c.ID, 0); err != nil { // a file system that was repaired has lost its limits
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder(t, l.records.Dir, "16777999"), "quota.json"), []byte("{"),
			0o600); err != nil {
			t.Fatal(err)
		}

		again := ledger(t, root)
		again.Reconcile(func(holder string) bool { return holder == "kept" })
		again.work.Wait()
		free(t, again, root, a.ID)
		free(t, again, root, b.ID)
		for _, dir := range []string{gone, half} {
			if id, err := Project(dir); err != nil || id != 0 {
				t.Errorf("%s still has project %d, %v", dir, id, err)
			}
		}
		if used, err := Read(root, c.ID); err != nil || used.Limit != 8<<20 {
			t.Errorf("what lives has %+v, %v", used, err)
		}
		if held := again.Held("kept"); len(held) != 1 || held[0].ID != c.ID {
			t.Errorf("held: %+v", held)
		}
		if left, err := os.ReadDir(l.records.Dir); err != nil || len(left) != 1 {
			t.Errorf("records: %v, %v", left, err)
		}
	})
}

// TestTheDeviceAnswersToo is about kernels before 5.14, which know quotas by block devices alone.
func TestTheDeviceAnswersToo(t *testing.T) {
	onEach(t, func(t *testing.T, root string) {
		f, err := os.Open(root)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s := status{version: 1}
		if errno := byDevice(int(f.Fd()), getStatus<<8|projectQuota, 0, unsafe.Pointer(&s)); errno != 0 ||
			s.flags&enforced == 0 {
			t.Errorf("status %#x, %v", s.flags, errno)
		}
		q := diskQuota{version: 1, flags: projectFlag, fields: fieldHard | fieldSoft, id: MinID, hard: 2048}
		if errno := byDevice(int(f.Fd()), setLimit<<8|projectQuota, MinID, unsafe.Pointer(&q)); errno != 0 {
			t.Error(errno)
		}
		if used, err := Read(root, MinID); err != nil || used.Limit != 1<<20 {
			t.Errorf("%+v, %v", used, err)
		}
	})
}
