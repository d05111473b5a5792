// Package inroot reads a file of an image.
package inroot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/containerd/errdefs"
	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// Read reads a file in a root directory, whose links lead nowhere but into it. A file that is missing is empty. The
// errors wrap errdefs.ErrInvalidArgument for what is no regular file or longer than the limit, and
// errdefs.ErrFailedPrecondition for what cannot be reached.
func Read(root, name string, limit int64) (string, error) {
	handle, err := pathrs.OpenInRoot(root, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s of the image: %w: %w", name, err, errdefs.ErrFailedPrecondition)
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return "", fmt.Errorf("%s of the image: %w", name, err)
	}
	// Only a regular file is opened: a pipe would wait for a writer, and a device would do something.
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s of the image is not a regular file: %w", name, errdefs.ErrInvalidArgument)
	}
	if info.Size() > limit {
		return "", fmt.Errorf("%s of the image has %d bytes, over the limit of %d: %w", name, info.Size(), limit,
			errdefs.ErrInvalidArgument)
	}
	file, err := pathrs.Reopen(handle, unix.O_RDONLY)
	if err != nil {
		return "", fmt.Errorf("%s of the image: %w", name, err)
	}
	defer file.Close()
	var content bytes.Buffer // as large as the file: io.Copy would take 32 KiB for some hundred bytes
	content.Grow(int(info.Size()) + bytes.MinRead)
	if _, err := content.ReadFrom(io.LimitReader(file, limit)); err != nil {
		return "", fmt.Errorf("%s of the image: %w", name, err)
	}
	return content.String(), nil
}
