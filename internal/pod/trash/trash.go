// Package trash removes directories in the background. A directory is renamed first, so it is out of the way at once;
// its contents may be many files.
package trash

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/disk"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
)

// Trash is a directory into which others of its file system are moved to be removed. Its methods may be called
// concurrently.
type Trash struct {
	dir    string
	ctx    context.Context // ends Empty
	filled chan struct{}   // something is in it
	log    *slog.Logger
	// remove removes the directory of a pod, a container or a volume.
	remove func(context.Context, string) error
}

// A directory that could not be removed is tried again, first after retryFirst and at last every retryLast: what a
// process still did in it, or what was mounted there, may be over.
const (
	retryFirst = time.Second
	retryLast  = 10 * time.Minute
)

// atTheEnd is how long Empty goes on when berthd ends. The calls that were cut off by that have put something aside,
// and it may be long until the next start.
const atTheEnd = time.Second

// New is the trash in a directory, with what an earlier berthd has left in it. Nothing is removed before Empty runs,
// which ends soon after ctx.
func New(ctx context.Context, dir string, log *slog.Logger) *Trash {
	return &Trash{dir: dir, ctx: ctx, filled: make(chan struct{}, 1), log: log, remove: rootfs.Remove}
}

// Discard takes a directory out of sight at once and removes it in the background: a writable layer may be large. On
// a disk that has no room for a further name in the trash, and on another disk than the trash's, it is removed where it
// is.
func (t *Trash) Discard(dir string) error {
	err := os.Rename(dir, filepath.Join(t.dir, record.NewID()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if disk.Full(err) || errors.Is(err, unix.EXDEV) { // an administrator may mount a disk at the directory of volumes
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
// has no record then, and the next start removes it.
func (t *Trash) removeInPlace(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, t.remove(t.ctx, dir))
}

// Empty removes, until a second after the context of New has ended, what Discard has put aside, what a crash has left
// there included.
func (t *Trash) Empty() {
	wait := retryFirst
	told := map[string]bool{} // the directories whose failure is in the log
	for {
		var again <-chan time.Time
		if t.emptyOnce(t.ctx, told) {
			wait = retryFirst
		} else {
			again = time.After(wait)
			wait = min(2*wait, retryLast)
		}
		select {
		case <-t.ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), atTheEnd)
			defer cancel()
			t.emptyOnce(ctx, told)
			return
		case <-t.filled:
		case <-again:
		}
	}
}

// emptyOnce tells whether the trash is empty.
func (t *Trash) emptyOnce(ctx context.Context, told map[string]bool) bool {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		t.log.Error("read the trash", "error", err)
	}
	empty := err == nil
	for _, e := range entries {
		err := t.removeOne(ctx, path.Join(t.dir, e.Name()))
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			continue
		}
		empty = false
		if !told[e.Name()] {
			told[e.Name()] = true
			t.log.Error("remove a discarded directory: it is tried again", "error", err)
		}
	}
	if empty {
		clear(told)
	}
	return empty
}

// removeOne removes a directory of the trash. A mount that could not be unmounted before, such as the image of an image
// volume, is detached first, so that no file of a mounted file system is removed.
func (t *Trash) removeOne(ctx context.Context, dir string) error {
	err := t.remove(ctx, dir)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	points, err := rootfs.Mounts(dir)
	for _, p := range points {
		err = errors.Join(err, rootfs.Unmount(path.Dir(p), p))
	}
	if err != nil {
		return err
	}
	return t.remove(ctx, dir)
}
