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
	"runtime"
	"sync"
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
	failed chan struct{}   // something could not be removed
	log    *slog.Logger
	// remove removes the directory of a pod, a container or a volume.
	remove func(context.Context, string) error

	slots   chan struct{} // has room for as many as are removed at once
	removal sync.WaitGroup

	mu    sync.Mutex
	busy  map[string]bool   // what is being removed, by its name in the trash
	told  map[string]bool   // the directories whose failure is in the log
	wait  time.Duration     // until the next try to remove what has failed
	large map[string]*large // what Await waits for, by the name that the directory had
}

// large is a directory in the trash that takes enough space to be waited for.
type large struct {
	name string        // in the trash
	done chan struct{} // closed when it is removed, or could not be
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

// A directory is large where it has so many files, or so much in them. Until then nobody measures the space that it
// takes, and it is removed in about a millisecond.
const (
	largeFiles = 256
	largeBytes = 4 << 20
)

const (
	// patience is how long Await waits at most, and margin how long before the end of a call it ends.
	patience = 5 * time.Second
	margin   = time.Second
)

// removers is how many directories are removed at once: one with many files, or on a disk that is slow, does not keep
// the space of others, and the rest of the node's processors are for its pods.
func removers() int { return min(max(runtime.NumCPU()/2, 2), 4) }

// New is the trash in a directory, with what an earlier berthd has left in it. Nothing is removed before Empty runs,
// which ends soon after ctx.
func New(ctx context.Context, dir string, log *slog.Logger) *Trash {
	return &Trash{dir: dir, ctx: ctx, log: log, remove: rootfs.Remove,
		filled: make(chan struct{}, 1), failed: make(chan struct{}, 1), slots: make(chan struct{}, removers()),
		busy: map[string]bool{}, told: map[string]bool{}, wait: retryFirst, large: map[string]*large{}}
}

// Discard takes a directory out of sight at once and removes it in the background: a writable layer may be large. On
// a disk that has no room for a further name in the trash, and on another disk than the trash's, it is removed where it
// is.
func (t *Trash) Discard(dir string) error {
	put := &large{name: record.NewID(), done: make(chan struct{})}
	waits := t.isLarge(dir)
	if waits { // before it can be removed
		t.mu.Lock()
		t.large[filepath.Base(dir)] = put
		t.mu.Unlock()
	}
	err := os.Rename(dir, filepath.Join(t.dir, put.name))
	if err != nil && waits {
		t.settle(put.name)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if disk.Full(err) || errors.Is(err, unix.EXDEV) { // an administrator may mount a disk at the directory of volumes
		return t.removeInPlace(dir)
	}
	if err != nil {
		return err
	}
	signal(t.filled)
	return nil
}

// signal does not wait: one that has not been read yet says the same.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errLarge ends the walk through a directory that is large.
var errLarge = errors.New("it is large")

// isLarge looks at no more files than make a directory large.
func (t *Trash) isLarge(dir string) bool {
	var files, bytes int64
	return errors.Is(rootfs.Walk(t.ctx, dir, func(_ int, _ string, st *unix.Stat_t) error {
		files++
		bytes += st.Blocks * 512
		if files > largeFiles || bytes > largeBytes {
			return errLarge
		}
		return nil
	}), errLarge)
}

// Await waits until the large ones of the directories that were discarded by these names are removed, so that a client
// which measures the disk next finds their space free. It gives up before ctx ends, and after some seconds: the removal
// goes on. No lock that another call needs may be held.
func (t *Trash) Await(ctx context.Context, names ...string) {
	limit := patience
	if end, bounded := ctx.Deadline(); bounded {
		limit = min(limit, time.Until(end)-margin)
	}
	if limit <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, name := range names {
		t.mu.Lock()
		l := t.large[name]
		t.mu.Unlock()
		if l == nil {
			continue
		}
		select {
		case <-l.done:
		case <-ctx.Done():
			return
		case <-t.ctx.Done():
			return
		}
	}
}

// settle ends the wait for a directory.
func (t *Trash) settle(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for of, l := range t.large {
		if l.name == name {
			close(l.done)
			delete(t.large, of)
		}
	}
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
	var again <-chan time.Time
	for begin := true; ; {
		if begin {
			t.begin(t.ctx)
		}
		begin = true
		select {
		case <-t.ctx.Done():
			t.removal.Wait()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), atTheEnd)
			defer cancel()
			t.begin(ctx)
			t.removal.Wait()
			return
		case <-t.filled:
		case <-again:
			again = nil
		case <-t.failed:
			begin = false
			if again == nil {
				t.mu.Lock()
				again = time.After(t.wait)
				t.wait = min(2*t.wait, retryLast)
				t.mu.Unlock()
			}
		}
	}
}

// begin begins to remove all that is in the trash. It waits for free slots only.
func (t *Trash) begin(ctx context.Context) {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		t.log.Error("read the trash", "error", err)
		signal(t.failed)
	}
	for _, e := range entries {
		name := e.Name()
		t.mu.Lock()
		busy := t.busy[name]
		t.busy[name] = true
		t.mu.Unlock()
		if busy {
			continue
		}
		select {
		case t.slots <- struct{}{}:
		case <-ctx.Done():
			t.mu.Lock()
			delete(t.busy, name)
			t.mu.Unlock()
			return
		}
		t.removal.Go(func() {
			defer func() { <-t.slots }()
			t.removed(ctx, name, t.removeOne(ctx, path.Join(t.dir, name)))
		})
	}
}

// removed takes note of the result of a removal.
func (t *Trash) removed(ctx context.Context, name string, err error) {
	t.settle(name)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.busy, name)
	switch {
	case err == nil:
		delete(t.told, name)
		if len(t.told) == 0 {
			t.wait = retryFirst
		}
	case ctx.Err() != nil:
	default:
		if !t.told[name] {
			t.told[name] = true
			t.log.Error("remove a discarded directory: it is tried again", "error", err)
		}
		signal(t.failed)
	}
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
