// Package inroot looks at files in root directories that belong to others: to an image, or to a process.
package inroot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"

	"berth/internal/lease"
)

// leaseWait is how long Open waits for a process that holds a lease of the file.
const leaseWait = 2 * time.Second

// Read reads a file of an image, as File does. A file that is missing is empty.
func Read(root, name string, limit int64) (string, error) {
	file, err := OpenIfThere(root, name, limit)
	if err != nil || file == nil {
		return "", err
	}
	defer file.Close()
	var content strings.Builder
	if info, err := file.Stat(); err == nil {
		content.Grow(int(info.Size()))
	}
	if _, err := io.Copy(&content, io.LimitReader(file, limit)); err != nil {
		return "", err
	}
	return content.String(), nil
}

// OpenIfThere opens a file of an image, as Open does. It is nil where the file is missing.
func OpenIfThere(root, name string, limit int64) (*os.File, error) {
	file, err := Open(root, name, limit)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s of the image: %w", name, err)
	}
	return file, nil
}

// File reads a file in a root directory. The errors are those of Open.
func File(root, name string, limit int64) ([]byte, error) {
	file, err := Open(root, name, limit)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer // as large as the file: io.Copy would take 32 KiB for some hundred bytes
	content.Grow(int(min(info.Size(), limit)) + bytes.MinRead)
	if _, err := content.ReadFrom(io.LimitReader(file, limit)); err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}

// Open opens a file in a root directory, whose links lead nowhere but into it. The file may grow beyond the limit
// later. The errors wrap errdefs.ErrInvalidArgument for what is no regular file or longer than the limit,
// fs.ErrNotExist or unix.ENOTDIR for what is missing, and errdefs.ErrFailedPrecondition for what else cannot be
// reached.
func Open(root, name string, limit int64) (*os.File, error) {
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
	return lease.Open(context.Background(), leaseWait, func() (*os.File, error) {
		return pathrs.Reopen(handle, unix.O_RDONLY|unix.O_NONBLOCK)
	})
}
