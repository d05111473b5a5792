package state

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

type thing struct{ N int }

func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	r := Records{Dir: filepath.Join(t.TempDir(), "things"), File: "thing.json"}
	for i, id := range []string{"a", "b", "a"} {
		if err := r.Save(id, thing{i}); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]*thing{}
	broken, err := r.Load(func(id string) any { got[id] = &thing{}; return got[id] })
	if err != nil || len(broken) != 0 {
		t.Fatal(broken, err)
	}
	if len(got) != 2 || got["a"].N != 2 || got["b"].N != 1 {
		t.Errorf("got %v", got)
	}
}

func TestATornOrMissingRecordIsReported(t *testing.T) {
	r := Records{Dir: t.TempDir(), File: "thing.json"}
	if err := r.Save("good", thing{1}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(r.Path("torn"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Path("torn"), "thing.json"), []byte(`{"N":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(r.Path("empty"), 0o711); err != nil {
		t.Fatal(err)
	}
	broken, err := r.Load(func(string) any { return &thing{} })
	if err != nil {
		t.Fatal(err)
	}
	if len(broken) != 2 || broken[0].ID != "empty" || broken[1].ID != "torn" {
		t.Errorf("broken: %v", broken)
	}
}

func TestARecordHasTwoFilesForAllItsVersions(t *testing.T) {
	r := Records{Dir: t.TempDir(), File: "thing.json"}
	inodes := map[uint64]bool{}
	for _, text := range []string{"one", strings.Repeat("two", 3000), "3", strings.Repeat("four", 20), "", "six"} {
		if err := r.Save("a", text); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := r.LoadFile("a", r.File, &got); err != nil || got != text {
			t.Fatalf("got %q, %v, want %q", got, err, text)
		}
		entries, err := os.ReadDir(r.Path("a"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			inodes[info.Sys().(*syscall.Stat_t).Ino] = true
		}
	}
	if len(inodes) != 2 {
		t.Errorf("%d files were made", len(inodes))
	}
	// The one before the last is what a power failure leaves.
	if err := os.WriteFile(filepath.Join(r.Path("a"), r.File), []byte(`"si`), 0o600); err != nil {
		t.Fatal(err)
	}
	got := new(string)
	broken, err := r.Load(func(string) any { got = new(string); return got })
	if err != nil || len(broken) != 0 || *got != "" {
		t.Errorf("%q, %v, %v", *got, broken, err)
	}
}

func TestExt4IsToldThatDirectoriesAreUnrelated(t *testing.T) {
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	Spread(dir)
	if fs.Type != unix.EXT4_SUPER_MAGIC {
		t.Skip("not on ext4, where there is nothing to tell")
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&topDir == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}

func TestOneDaemonHoldsADirectory(t *testing.T) {
	dir := t.TempDir()
	release, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil {
		t.Fatal("two hold it")
	}
	release()
	release, err = Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestDirectoriesOfAnEarlierVersionAreClosed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.MkdirAll(filepath.Join(dir, "entry"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := MakeDir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := HideEntries(dir); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]os.FileMode{"": 0o700, "entry": 0o700, "file": 0o644, "link": 0o755} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q has mode %v in place of %v (%v)", name, info.Mode().Perm(), want, err)
		}
	}
	if err := HideEntries(filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there is no error")
	}
}
