package disk

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Full tells whether an error says that a disk, or a quota on it, is full.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Unwritable tells whether an error says that a file system takes no writes any more: it is read-only, as the kernel
// makes one after an error of its disk (ext4 with errors=remount-ro), or its disk answers with errors (EIO, which xfs
// gives for everything after such an error).
func Unwritable(err error) bool { return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EIO) }

// Exhausted gives an error that says that a disk is full the code that clients act on, errdefs.ErrResourceExhausted.
// Any other error, one that has the code already, and nil are returned as they are.
func Exhausted(err error) error {
	if Full(err) && !errdefs.IsResourceExhausted(err) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
	}
	return err
}
