package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// TestAFullDiskHasTheCodeThatClientsActOn: and no other error has.
func TestAFullDiskHasTheCodeThatClientsActOn(t *testing.T) {
	coded := fmt.Errorf("layer: %w: %w", unix.ENOSPC, errdefs.ErrResourceExhausted)
	for _, c := range []struct {
		err  error
		full bool
	}{
		{nil, false},
		{os.ErrNotExist, false},
		{unix.ENOMEM, false},
		{&os.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}, true},
		{fmt.Errorf("quota: %w", unix.EDQUOT), true},
		{coded, true},
	} {
		if got := Full(c.err); got != c.full {
			t.Errorf("Full(%v) is %t", c.err, got)
		}
		err := Exhausted(c.err)
		if got := errdefs.IsResourceExhausted(err); got != c.full {
			t.Errorf("Exhausted(%v) is %v", c.err, err)
		}
		if !errors.Is(err, c.err) {
			t.Errorf("Exhausted(%v) is %v", c.err, err)
		}
	}
	if Exhausted(coded) != coded {
		t.Error("an error that has the code gets it twice")
	}
}

func TestAFileIsReplacedWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record.json")
	for _, content := range []string{"first", "the second", "3rd"} {
		if err := WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		holds(t, path, content)
		if err := WriteOrOverwrite(path+"2", []byte(content)); err != nil {
			t.Fatal(err)
		}
		holds(t, path+"2", content)
		if err := WriteFileSynced(path+"3", []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		holds(t, path+"3", content)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&^0o640 != 0 {
		t.Errorf("%v, %v", info, err)
	}
	only(t, dir, "record.json", "record.json2", "record.json3")
	if err := WriteFile(filepath.Join(dir, "none", "record.json"), nil, 0o600); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
}

// TestAFullDiskLeavesTheOldFile: a replacement that finds no room leaves the file as it was and nothing beside it; in
// place there may be room. It was seen to fail without the removal of what is half written, where a failed write is
// renamed all the same, and without the overwriting.
func TestAFullDiskLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=8k"); err != nil {
		t.Skipf("to mount a file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "record.json")
	if err := WriteFile(path, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 64<<10), 0o600); !Full(err) {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("the second"), 0o600); !Full(err) {
		t.Errorf("without room: %v", err)
	}
	holds(t, path, "first")
	if _, err := Overwrite(path, []byte("the second")); err != nil {
		t.Errorf("in place: %v", err)
	}
	holds(t, path, "the second")
	if intact, err := Overwrite(path, make([]byte, 64<<10)); !Full(err) || !intact {
		t.Errorf("in place, without room: intact is %t, %v", intact, err)
	}
	holds(t, path, "the second")
	if err := WriteOrOverwrite(path, []byte("the third")); err != nil {
		t.Errorf("whole or in place: %v", err)
	}
	holds(t, path, "the third")
	if err := WriteOrOverwrite(filepath.Join(dir, "new"), []byte("new")); !Full(err) {
		t.Errorf("a new file, whole or in place: %v", err)
	}
	if _, err := Overwrite(filepath.Join(dir, "new"), make([]byte, 64<<10)); !Full(err) {
		t.Errorf("a new file without room: %v", err)
	}
	only(t, dir, "fill", "record.json")
}

func holds(t *testing.T, path, content string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("%s holds %q, %v; it should hold %q", path, got, err, content)
	}
}

func only(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(names) {
		t.Fatalf("%s has %v, %v; it should have %v", dir, entries, err, names)
	}
	for i, e := range entries {
		if e.Name() != names[i] {
			t.Errorf("%s has %v; it should have %v", dir, entries, names)
		}
	}
}
