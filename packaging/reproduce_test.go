package packaging_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"berth/test/node"
)

// envReproduce makes the test build everything anew, also what Go's cache has.
const envReproduce = "BERTH_REPRODUCE"

// TestTheSameBytesFromAnotherDirectory builds the programs of a copy of the tree, which lies elsewhere. Seen to fail
// without -trimpath for the keeper; and, built anew, with -g for the C and a TMPDIR whose path begins with that of the
// tree.
func TestTheSameBytesFromAnotherDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds all programs twice")
	}
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "a", "tree")
	for _, dir := range []string{"api", "cmd", "docs", "internal", "packaging"} {
		if err := os.CopyFS(filepath.Join(elsewhere, dir), os.DirFS(filepath.Join(root, dir))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(elsewhere, file), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	here, there := t.TempDir(), t.TempDir()
	for tree, dir := range map[string]string{root: here, elsewhere: there} {
		build := exec.Command(filepath.Join(tree, "packaging", "build.sh"), dir, "1.2.3")
		if os.Getenv(envReproduce) != "" && tree == elsewhere {
			build.Env = append(os.Environ(), "GOCACHE="+t.TempDir())
		}
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build of %s: %v\n%s", tree, err, out)
		}
	}
	for _, name := range []string{"berthd", "berth", "berth-unpack", "berth-keeper"} {
		first, err := os.ReadFile(filepath.Join(here, name))
		if err != nil {
			t.Fatal(err)
		}
		second, err := os.ReadFile(filepath.Join(there, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Errorf("%s has other bytes if the tree lies in another directory", name)
		}
	}
}
