// Package inroot looks at files in root directories that belong to others: to an image, or to a process.
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

// Read reads a file of an image, as File does. A file that is missing is empty.
func Read(root, name string, limit int64) (string, error) {
	content, err := File(root, name, limit)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s of the image: %w", name, err)
	}
	return string(content), nil
}

// File reads a file in a root directory, whose links lead nowhere but into it. The errors wrap
// errdefs.ErrInvalidArgument for what is no regular file or longer than the limit, fs.ErrNotExist or unix.ENOTDIR for
// what is missing, and errdefs.ErrFailedPrecondition for what else cannot be reached.
func File(root, name string, limit int64) ([]byte, error) {
	handle, err := pathrs.OpenInRoot(root, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	// Only a regular file is opened: a pipe would wait for a writer, and a device would do something.
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file: %w", errdefs.ErrInvalidArgument)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%d bytes, over the limit of %d: %w", info.Size(), limit, errdefs.ErrInvalidArgument)
	}
	file, err := pathrs.Reopen(handle, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var content bytes.Buffer // as large as the file: io.Copy would take 32 KiB for some hundred bytes
	content.Grow(int(info.Size()) + bytes.MinRead)
	if _, err := content.ReadFrom(io.LimitReader(file, limit)); err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}
