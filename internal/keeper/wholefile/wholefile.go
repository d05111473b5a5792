// Package wholefile writes files whole or not at all.
package wholefile

import (
	"errors"
	"os"
	"path/filepath"

	"berth/internal/state"
)

// Write writes a file, whole or not at all. Where there is no room for two, one that is there is written over in place.
func Write(path string, b []byte) error {
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	err := os.WriteFile(tmp, b, 0o600)
	if err == nil {
		return os.Rename(tmp, path)
	}
	if rerr := os.Remove(tmp); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if _, statErr := os.Lstat(path); statErr == nil && state.Full(err) {
		return state.Overwrite(path, b)
	}
	return err
}
