package inroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// Path is where a name in a root directory is, whose links lead nowhere but into it. The error wraps fs.ErrNotExist
// where there is nothing.
func Path(root, name string) (string, error) {
	path, err := securejoin.SecureJoin(root, name)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(path); errors.Is(err, unix.ENOTDIR) {
		return "", fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	} else if err != nil {
		return "", err
	}
	return path, nil
}
