package hostpath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/hostpath/mutetest"
)

func TestLinksAreFollowed(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "file (deleted)")
	must(os.WriteFile(file, nil, 0o600))
	must(os.Mkdir(filepath.Join(dir, "d"), 0o700))
	must(os.Symlink("d", filepath.Join(dir, "relative")))
	must(os.Symlink(file, filepath.Join(dir, "absolute")))
	must(os.Symlink("loop", filepath.Join(dir, "loop")))
	var st unix.Statx_t
	must(unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID, &st))
	mount, unique := st.Mnt_id, uint64(0)
	must(unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID_UNIQUE, &st))
	if st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
		unique = st.Mnt_id
	}
	for path, want := range map[string]Resolved{
		dir + "/relative/../relative": {Path: dir + "/d", Mount: mount, Unique: unique, Dir: true},
		dir + "/absolute":             {Path: file, Mount: mount, Unique: unique},
		dir + "//d/":                  {Path: dir + "/d", Mount: mount, Unique: unique, Dir: true},
	} {
		for name, resolve := range map[string]func(string) (Resolved, error){"at once": Resolve, "by a child": askResolved} {
			if got, err := resolve(path); err != nil || got != want {
				t.Errorf("%s, %s: %+v, %v; want %+v", path, name, got, err, want)
			}
		}
	}
	if _, ok := known(dir + "/d"); !ok {
		t.Error("a path that was just made takes a child")
	}
	if _, err := Resolve(dir + "/none/x"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir+"/none") {
		t.Errorf("what is not there: %v", err)
	}
	for _, path := range []string{dir + "/loop", "/proc/self/ns/net"} {
		if r, err := Resolve(path); err == nil {
			t.Errorf("%s is %+v", path, r)
		}
	}
}

func askResolved(path string) (r Resolved, err error) {
	err = ask(actResolve, path, &r, nil)
	return r, err
}

// A file system that does not answer holds up a child, and no thread of this process. Seen to fail with EvalSymlinks
// in place of Resolve: the test itself could not be killed.
func TestAFileSystemThatDoesNotAnswer(t *testing.T) {
	f := mutetest.Mount(t, t.TempDir())
	path := filepath.Join(f.Dir, "x")
	if r, err := Resolve(path); err != nil || r.Path != path || !r.Dir {
		t.Fatalf("as long as it answers: %+v, %v", r, err)
	}
	f.Mute()
	var looks sync.WaitGroup
	looks.Go(func() {
		began := time.Now()
		if _, err := Resolve(path); !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took < patience {
			t.Errorf("given up after %v", took)
		}
	})
	for name, look := range map[string]func(string) error{
		"stat":    func(p string) error { _, err := Stat(p); return err },
		"devices": func(p string) error { _, err := DevicesBelow(p); return err },
	} {
		looks.Go(func() {
			if err := look(filepath.Join(f.Dir, name)); !errors.Is(err, errdefs.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	looks.Wait()
	var took time.Duration
	for range 3 { // the machine may be slow at one of them
		began := time.Now()
		if _, err := Resolve(path); !errors.Is(err, errdefs.ErrUnavailable) {
			t.Errorf("again: %v", err)
		}
		if took = time.Since(began); took <= patience/2 {
			break
		}
	}
	if took > patience/2 {
		t.Errorf("one that waits already is waited for another %v", took)
	}
	// No thread of this process sleeps uninterruptibly.
	tasks, err := filepath.Glob("/proc/self/task/*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if stat, err := os.ReadFile(task); err == nil && strings.Contains(string(stat), ") D ") {
			t.Errorf("a thread waits: %s", stat)
		}
	}
	f.End()
	nobodyWaits(t)
}

// nobodyWaits fails if children wait although their file system has gone.
func nobodyWaits(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		stuck.mu.Lock()
		count := len(stuck.paths) + len(stuck.systems)
		stuck.mu.Unlock()
		if count == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("children still wait: %v, %v", stuck.paths, stuck.systems)
		}
	}
}

// What a child says of devices is what stat(2) says, and what is none is passed over.
func TestDevices(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "d", "null")
	if err := unix.Mknod(path, unix.S_IFCHR|0o640, int(unix.Mkdev(1, 3))); err != nil {
		t.Skip(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	want := Node{Path: path, Mode: st.Mode, Major: 1, Minor: 3}
	found, err := DevicesBelow(dir)
	if err != nil || len(found) != 1 || found[0] != want {
		t.Errorf("%+v, %v; want %+v", found, err, want)
	}
	if n, err := Stat(path); err != nil || n != want {
		t.Errorf("%+v, %v", n, err)
	}
	if n, err := Stat(filepath.Join(dir, "file")); err != nil || n.IsDevice() {
		t.Errorf("a plain file: %+v, %v", n, err)
	}
	if _, err := Stat(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
}
