package fileattr

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestTheTopmostClosedDirectoryBars(t *testing.T) {
	top := t.TempDir()
	closed, below := filepath.Join(top, "a"), filepath.Join(top, "a/b")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	own, group := uint32(os.Getuid()), uint32(os.Getgid())
	const other = 1<<32 - 2
	for _, dir := range []string{top, filepath.Dir(top)} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if dir, mode := Barring(top, other, other); dir != "" {
		t.Skipf("%s, in which temporary directories are, has mode %#o: name another in TMPDIR", dir, mode)
	}
	for _, c := range []struct {
		mode     fs.FileMode
		uid, gid uint32
		barred   bool
	}{
		{0o711, other, other, false},
		{0o700, other, other, true},
		{0o700, own, other, false},
		{0o677, own, other, true}, // an owner has the owner's rights alone
		{0o710, other, group, false},
		{0o701, other, group, true},
	} {
		if err := os.Chmod(below, c.mode); err != nil {
			t.Fatal(err)
		}
		if dir, mode := Barring(filepath.Join(below, "not-there"), c.uid, c.gid); (dir == below) != c.barred ||
			c.barred && mode != c.mode {
			t.Errorf("%#o for %d:%d: %q of mode %#o bars", c.mode, c.uid, c.gid, dir, mode)
		}
	}
	for _, dir := range []string{below, closed} {
		if err := os.Chmod(dir, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if dir, _ := Barring(below, other, other); dir != closed {
		t.Errorf("%q bars, want the topmost, %s", dir, closed)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
}
