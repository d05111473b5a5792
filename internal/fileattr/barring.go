package fileattr

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Barring is the topmost directory of a path, up to the path itself, that the mode of a directory keeps a user with
// one group from passing, and this mode; empty if there is none. Access control lists are not looked at. What is not
// there, or cannot be looked at, bars nobody.
func Barring(path string, uid, gid uint32) (dir string, mode fs.FileMode) {
	path = filepath.Clean(path)
	if up := filepath.Dir(path); up != path {
		if dir, mode = Barring(up, uid, gid); dir != "" {
			return dir, mode
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", 0
	}
	pass := fs.FileMode(0o001)
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == uid {
		pass = 0o100
	} else if ok && st.Gid == gid {
		pass = 0o010
	}
	if mode = info.Mode().Perm(); mode&pass == 0 {
		return path, mode
	}
	return "", 0
}
