package logs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// TestNoTwoContainersWriteOneLog, by whatever path they name it, until the first has released it.
func TestNoTwoContainersWriteOneLog(t *testing.T) {
	top := t.TempDir()
	if err := os.Mkdir(filepath.Join(top, "real"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	l := New()
	if err := l.Claim("a", filepath.Join(top, "real/0.log")); err != nil {
		t.Fatal(err)
	}
	if err := l.Claim("a", filepath.Join(top, "real/0.log")); err != nil {
		t.Errorf("its own log: %v", err)
	}
	if err := l.Claim("b", filepath.Join(top, "link/0.log")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second writer: %v", err)
	}
	l.Release("b") // which has none
	if err := l.Claim("b", filepath.Join(top, "real/0.log")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("after the release of another log: %v", err)
	}
	l.Release("a")
	if err := l.Claim("b", filepath.Join(top, "link/0.log")); err != nil {
		t.Errorf("after its release: %v", err)
	}
}

// TestAContainerThatRunsKeepsItsLog over a restart of berthd.
func TestAContainerThatRunsKeepsItsLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	l := New()
	l.Adopt("a", path)
	if err := l.Claim("b", path); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second writer: %v", err)
	}
}

func TestContainersWithoutALogNeverMeet(t *testing.T) {
	l := New()
	for _, id := range []string{"a", "b"} {
		if err := l.Claim(id, ""); err != nil {
			t.Errorf("container %s: %v", id, err)
		}
	}
}

func TestALogsDirectoryIsMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod/container/0.log")
	if err := New().Claim("a", path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		t.Errorf("it is %v (%v)", info, err)
	}
}
