package pod

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path"
	"path/filepath"

	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/state"
)

// trash is where directories are put that are to be removed, on the file system that they are on. Its methods may be
// called concurrently.
type trash struct {
	dir    string
	ctx    context.Context // ends with the Manager
	filled chan struct{}   // something is in it
	log    *slog.Logger
}

// newTrash is the trash in a directory of the node's root.
func newTrash(ctx context.Context, dir string, log *slog.Logger) *trash {
	return &trash{dir: dir, ctx: ctx, filled: make(chan struct{}, 1), log: log}
}

// discard takes a directory out of sight at once and removes it in the background: a writable layer may be large. On
// a disk that has no room for a further name in the trash it is removed where it is.
func (t *trash) discard(dir string) error {
	err := os.Rename(dir, filepath.Join(t.dir, record.NewID()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if state.Full(err) {
		return t.removeInPlace(dir)
	}
	if err != nil {
		return err
	}
	select {
	case t.filled <- struct{}{}:
	default: // the background is told already
	}
	return nil
}

// removeInPlace removes the directory of a pod, a container or a volume, its records first: what a crash leaves of it
// is nobody's then.
func (t *trash) removeInPlace(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, rootfs.Remove(t.ctx, dir))
}

// empty removes, until the Manager is closed, what discard has put aside, what a crash has left there included.
func (t *trash) empty() {
	for {
		entries, err := os.ReadDir(t.dir)
		if err != nil {
			t.log.Error("read the trash", "error", err)
		}
		for _, e := range entries {
			if err := rootfs.Remove(t.ctx, path.Join(t.dir, e.Name())); err != nil && t.ctx.Err() == nil {
				t.log.Error("remove a discarded directory", "error", err)
			}
		}
		select {
		case <-t.ctx.Done():
			return
		case <-t.filled:
		}
	}
}
