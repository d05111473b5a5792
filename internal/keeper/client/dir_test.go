package client_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTheDirectoryAboveIsForOthersToo: what a keeper lives in has the CRI's socket, for a group, and what processes in
// user namespaces start from.
func TestTheDirectoryAboveIsForOthersToo(t *testing.T) {
	n := start(t)
	for dir, want := range map[string]os.FileMode{n.dir: 0o700, filepath.Dir(n.dir): 0o711} {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s has mode %v in place of %v (%v)", dir, st.Mode().Perm(), want, err)
		}
	}
}
