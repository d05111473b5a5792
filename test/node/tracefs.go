package node

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Tracefs is the directory of the kernel's tracing. Where it is not mounted, it is mounted on the directory at, until
// unmount is called.
func Tracefs(at string) (dir string, unmount func() error, err error) {
	dir = "/sys/kernel/tracing"
	if _, err := os.Stat(filepath.Join(dir, "instances")); err == nil {
		return dir, func() error { return nil }, nil
	}
	if err := unix.Mount("tracefs", at, "tracefs", 0, ""); err != nil {
		return "", nil, fmt.Errorf("mount tracefs: %w", err)
	}
	return at, func() error { return unix.Unmount(at, unix.MNT_DETACH) }, nil
}
