package protocol

import (
	"os"
	"path/filepath"
)

// MakeDir makes a keeper's directory, which is for root alone. The directory above it may be passed by others, since
// it also holds the CRI's socket and the roots of pods with user namespaces.
func MakeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o700)
}
