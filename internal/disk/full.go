package disk

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Full tells whether an error says that a disk, or a quota on it, is full.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Unwritable tells whether an error says that a file system takes no writes any more: it is read-only, as the kernel
// makes one after an error of its disk (ext4 with errors=remount-ro), or its disk answers with errors (EIO, which xfs
// gives for everything after such an error).
func Unwritable(err error) bool { return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EIO) }

// Short tells whether an error says that the process or the kernel had no room for another descriptor or for memory, or
// that the call was interrupted. It says nothing about the file, and the same call may succeed later.
func Short(err error) bool { return isAny(err, short) }

// Unread tells whether an error says that a file could not be read, but nothing about what is in it: Short, or the disk
// or the way to it has failed. A file that is not there, or that the file system calls damaged (EUCLEAN, EBADMSG), is
// another matter.
func Unread(err error) bool { return isAny(err, short) || isAny(err, failed) }

var (
	short  = []syscall.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR, unix.EAGAIN}
	failed = []syscall.Errno{
		unix.EIO, unix.ENXIO, unix.ENODEV, unix.EREMOTEIO, unix.ENOLINK, unix.ETIMEDOUT, unix.ESTALE,
	}
)

func isAny(err error, numbers []syscall.Errno) bool {
	return slices.ContainsFunc(numbers, func(n syscall.Errno) bool { return errors.Is(err, n) })
}

// Exhausted gives an error that says that a disk is full the code that clients act on, errdefs.ErrResourceExhausted.
// Any other error, one that has the code already, and nil are returned as they are.
func Exhausted(err error) error {
	if Full(err) && !errdefs.IsResourceExhausted(err) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
	}
	return err
}
