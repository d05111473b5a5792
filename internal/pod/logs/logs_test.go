package logs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/hostpath/mutetest"
)

// TestNoTwoContainersWriteOneLog, by whatever path they name it, until the first has released it.
func TestNoTwoContainersWriteOneLog(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(top, "real"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	l := New(top)
	claim := func(id, path string) error { _, err := l.Claim(id, filepath.Join(top, path)); return err }
	file, err := l.Claim("a", filepath.Join(top, "link/0.log"))
	if err != nil || file != filepath.Join(top, "real/0.log") {
		t.Fatalf("%q, %v", file, err)
	}
	if err := claim("a", "real/0.log"); err != nil {
		t.Errorf("its own log: %v", err)
	}
	if err := claim("b", "link/0.log"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second writer: %v", err)
	}
	l.Release("b") // which has none
	if err := claim("b", "real/0.log"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("after the release of another log: %v", err)
	}
	l.Release("a")
	if err := claim("b", "link/0.log"); err != nil {
		t.Errorf("after its release: %v", err)
	}
}

// TestAContainerThatRunsKeepsItsLog over a restart of berthd.
func TestAContainerThatRunsKeepsItsLog(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "0.log")
	file, err := New(top).Claim("a", path)
	if err != nil {
		t.Fatal(err)
	}
	l := New(top)
	l.Adopt("a", file)
	if _, err := l.Claim("b", path); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second writer: %v", err)
	}
}

// TestAClaimIsCorrected once it is known where a log is.
func TestAClaimIsCorrected(t *testing.T) {
	top := t.TempDir()
	if err := os.Mkdir(filepath.Join(top, "real"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(top, "link/0.log")
	if err := os.Symlink("real", filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	l := New(top)
	l.Adopt("a", path)
	file, err := File(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Correct("b", file) // which has none, and gets none
	l.Correct("a", file)
	if _, err := l.Claim("b", filepath.Join(top, "real/0.log")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second writer: %v", err)
	}
	l.Release("a")
	l.Correct("a", file) // it has ended meanwhile
	if _, err := l.Claim("b", path); err != nil {
		t.Errorf("after its release: %v", err)
	}
}

func TestContainersWithoutALogNeverMeet(t *testing.T) {
	l := New(t.TempDir())
	for _, id := range []string{"a", "b"} {
		if file, err := l.Claim(id, ""); err != nil || file != "" {
			t.Errorf("container %s: %q, %v", id, file, err)
		}
	}
}

func TestALogsDirectoryIsMade(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "pod/container/0.log")
	if _, err := New(top).Claim("a", path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		t.Errorf("it is %v (%v)", info, err)
	}
}

// TestALogWhoseFileSystemDoesNotAnswer is given up in some seconds, and claims nothing. Seen to fail with MkdirAll: the
// test itself could not be killed.
func TestALogWhoseFileSystemDoesNotAnswer(t *testing.T) {
	top := t.TempDir()
	f := mutetest.Mount(t, top)
	f.Mute()
	l := New(t.TempDir())
	path := filepath.Join(top, "pod/0.log")
	if _, err := l.Claim("a", path); !errdefs.IsUnavailable(err) {
		t.Errorf("error %v", err)
	}
	f.End()
	if _, err := l.Claim("b", path); err != nil {
		t.Errorf("once it has gone: %v", err)
	}
}
