package state

import (
	"os"
	"path/filepath"

	"berth/internal/disk"
)

// MakeDir makes a directory with these permissions, and gives them to one that is there, which an earlier version
// of Berth may have made with more. What leads to files of images and containers is for root alone (0700):
// setuid programs are among them, and no user of the node may run those.
func MakeDir(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, mode); err != nil {
		// Where a file system answers with errors, MkdirAll says that what it cannot look at exists.
		if _, lookErr := os.Stat(dir); disk.Unwritable(lookErr) {
			return lookErr
		}
		return err
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() == mode {
		return err
	}
	return os.Chmod(dir, mode)
}

// HideEntries takes from the directories in dir all that others than root may do there. It goes on after an error,
// and returns the first.
func HideEntries(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		info, hideErr := e.Info()
		if hideErr == nil && info.Mode().Perm()&0o077 != 0 {
			hideErr = os.Chmod(filepath.Join(dir, e.Name()), 0o700)
		}
		if err == nil && !os.IsNotExist(hideErr) {
			err = hideErr
		}
	}
	return err
}
