package inroot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// maxSteps bounds how many directories are passed to resolve all paths of one Resolver. Each part of a path, and of the
// targets of its links, is looked up from the root on, and there may be 255 links. A kernel passes this many in half a
// second, and a thousand paths of ten parts each need a twentieth of them.
const maxSteps = 4 << 20

// Resolver resolves paths in root directories whose links lead nowhere but into these. Links may make one path pass
// hundreds of millions of directories, so all paths of a Resolver together have a limit. It is not safe for concurrent
// use.
type Resolver struct {
	ctx  context.Context
	left int
}

// NewResolver makes a Resolver whose paths are resolved until ctx ends.
func NewResolver(ctx context.Context) *Resolver { return &Resolver{ctx: ctx, left: maxSteps} }

// Place is where a path in a root directory is, or would be: what does not exist is taken for a directory. The error
// wraps errdefs.ErrInvalidArgument for paths beyond the limit, and the cause of the end of the context.
func (r *Resolver) Place(root, name string) (string, error) {
	return securejoin.SecureJoinVFS(root, name, r)
}

// Path is where a name in a root directory is. The error is that of Place, or wraps fs.ErrNotExist where there is
// nothing.
func (r *Resolver) Path(root, name string) (string, error) {
	path, err := r.Place(root, name)
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

// Lstat is os.Lstat, for securejoin. It counts the directories that the kernel passes.
func (r *Resolver) Lstat(name string) (os.FileInfo, error) {
	if r.ctx.Err() != nil {
		return nil, context.Cause(r.ctx)
	}
	if r.left -= strings.Count(name, "/"); r.left < 0 {
		return nil, fmt.Errorf("links lead through more than %d directories: %w", maxSteps, errdefs.ErrInvalidArgument)
	}
	return os.Lstat(name)
}

// Readlink is os.Readlink, for securejoin.
func (r *Resolver) Readlink(name string) (string, error) { return os.Readlink(name) }
