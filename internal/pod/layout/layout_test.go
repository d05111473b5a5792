package layout

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/model"
	"berth/internal/pod/record"
)

func newDirs(t *testing.T) *Dirs {
	t.Helper()
	top := t.TempDir()
	return &Dirs{Root: filepath.Join(top, "root"), State: filepath.Join(top, "state")}
}

func sandbox(id string, options model.NamespaceOptions) *record.Sandbox {
	return &record.Sandbox{ID: id, Config: &model.SandboxConfig{Security: model.SandboxSecurity{Namespaces: options}}}
}

// TestWhatLeadsToFilesOfContainersIsForRootAlone, be it made anew or left open by somebody.
func TestWhatLeadsToFilesOfContainersIsForRootAlone(t *testing.T) {
	l := newDirs(t)
	open := l.Container("of-an-earlier-version")
	if err := os.MkdirAll(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.Make(); err != nil {
		t.Fatal(err)
	}
	l.Hide(slog.New(slog.DiscardHandler))
	if err := l.MakeStatePod(sandbox("a", model.NamespaceOptions{})); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]os.FileMode{
		l.Pods(): 0o700, l.Containers(): 0o700, l.Trash(): 0o700, l.Attach(): 0o700, open: 0o700,
		l.State: 0o711, l.StatePods(): 0o711, l.StatePod("a"): 0o700,
	} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the mode %v and not %v (%v)", dir, info.Mode().Perm(), want, err)
		}
	}
}

// TestFilesThatAKilledKeeperHasLeftAreRemoved from the directory of what attached clients have not taken.
func TestFilesThatAKilledKeeperHasLeftAreRemoved(t *testing.T) {
	l := newDirs(t)
	if err := os.MkdirAll(l.Attach(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.Attach(), "backlog"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Make(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(l.Attach()); err != nil || len(entries) > 0 {
		t.Errorf("in it are %v (%v)", entries, err)
	}
}

// TestARootFileSystemInAPodsDirectoryIsKnown whose pod has no record any more.
func TestARootFileSystemInAPodsDirectoryIsKnown(t *testing.T) {
	l := newDirs(t)
	user := &model.UserNamespace{Mode: model.NamespacePod}
	at := l.Rootfs(sandbox("a", model.NamespaceOptions{User: user}), "c")
	if filepath.Dir(filepath.Dir(at)) != l.StatePod("a") || !l.IsRootfs(at, "c") || l.IsRootfs(at, "d") {
		t.Errorf("the root file system of c is at %s: %v, and d's: %v", at, l.IsRootfs(at, "c"), l.IsRootfs(at, "d"))
	}
	if at := l.Rootfs(sandbox("a", model.NamespaceOptions{}), "c"); filepath.Dir(at) != l.Container("c") ||
		l.IsRootfs(at, "c") {
		t.Errorf("without a user namespace it is at %s", at)
	}
}

// TestANamespaceThatARecordPromisesIsMissed, and none that is the node's.
func TestANamespaceThatARecordPromisesIsMissed(t *testing.T) {
	l := newDirs(t)
	node := model.NamespaceOptions{Network: model.NamespaceNode, IPC: model.NamespaceNode, PID: model.NamespaceContainer}
	if lost := l.LostNamespace(sandbox("a", node)); lost != "" {
		t.Errorf("a pod in the node's namespaces has lost its %s", lost)
	}
	node.IPC = model.NamespacePod
	if lost := l.LostNamespace(sandbox("a", node)); lost != "ipc namespace" {
		t.Errorf("a pod whose IPC namespace is not pinned has lost its %q", lost)
	}
}

// TestAnEarlierVersionsShmIsFound: its pods have a tmpfs for /dev/shm alone.
func TestAnEarlierVersionsShmIsFound(t *testing.T) {
	l := newDirs(t)
	r := sandbox("a", model.NamespaceOptions{})
	if at := l.Mounts(r)["/dev/shm"]; at != l.EarlierShm("a") {
		t.Errorf("it is at %s", at)
	}
	r.SharedTmpfs = true
	if at := l.Mounts(r)["/dev/shm"]; filepath.Dir(at) != l.Files("a") {
		t.Errorf("a pod of today has it at %s", at)
	}
}
