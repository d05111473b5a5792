package disk

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unnamed makes a file without a name on the disk of a directory, for bytes that nobody needs once the process has
// ended. A kill -9 leaves nothing of it behind. Where the file system has no such files (O_TMPFILE), it has a name for
// a moment.
func Unnamed(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|unix.O_EXCL, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(dir, "(file without a name)")), nil
	}
	file, err := os.CreateTemp(dir, "spool-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
