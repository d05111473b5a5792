package hostpath

import (
	"errors"

	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"
)

// Relabel gives a file, or a directory with all that is in it, a label of SELinux; without its categories where it is
// shared. It takes as long as the tree is large. The error wraps errdefs.ErrUnavailable where the file system does not
// answer any more.
func Relabel(path, fileLabel string, shared bool) error {
	how := "private"
	if shared {
		how = "shared"
	}
	var nothing any
	return ask(actRelabel, path, &nothing, answers(path), fileLabel, how)
}

// relabel leaves a file system alone that has no labels.
func relabel(path, fileLabel string, shared bool) error {
	if err := label.Relabel(path, fileLabel, shared); err != nil && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}
