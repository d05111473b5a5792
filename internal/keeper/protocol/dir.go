package protocol

import (
	"os"
	"path/filepath"
)

// MakeDir makes a keeper's directory, which is for root alone. What it lies in has other things beside it, such as the
// CRI's socket and the roots of pods with user namespaces, and whoever may use these passes.
func MakeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o700)
}
