package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
	"berth/internal/disk"
)

// layerDirs is the directory that has a directory for each layer. A caller that makes or removes the directory of a
// layer has first marked it as busy in the index.
//
// Another file system may be mounted over the root while the store is open. What stands there under the number of a
// layer is then not that layer: it may be a layer of the store that was in use on that file system before. So a
// directory is only written to and removed where the root is the one in which it was found or made.
type layerDirs struct {
	root   string // absolute
	opened rootID // of the root when the store was opened
	boot   string // of the machine
	log    *slog.Logger

	mu        sync.Mutex
	elsewhere map[string]rootID // of directories that were made in another root than the opened one; guarded by mu
}

// rootID tells one directory from another that is mounted over it.
type rootID struct{ dev, ino uint64 }

func idOf(dir string) (rootID, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return rootID{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return rootID{st.Dev, st.Ino}, nil
}

func openLayerDirs(root, boot string, log *slog.Logger) (*layerDirs, error) {
	opened, err := idOf(root)
	return &layerDirs{root: root, opened: opened, boot: boot, log: log, elsewhere: map[string]rootID{}}, err
}

// make makes the directory of a layer. One that is there is os.ErrExist.
func (d *layerDirs) make(n string) error {
	if err := os.Mkdir(d.home(n), 0o700); err != nil {
		return err
	}
	return d.made(n)
}

// made notes in which root the directory of a layer was made.
func (d *layerDirs) made(n string) error {
	root, err := idOf(d.root)
	if err == nil && root != d.opened {
		d.mu.Lock()
		d.elsewhere[n] = root
		d.mu.Unlock()
	}
	return err
}

// within makes sure that the path of a layer's directory still leads to that directory.
func (d *layerDirs) within(n string) error {
	root, err := idOf(d.root)
	if err != nil {
		return err
	}
	d.mu.Lock()
	want, ok := d.elsewhere[n]
	d.mu.Unlock()
	if !ok {
		want = d.opened
	}
	if root != want {
		return fmt.Errorf("layer %s: another file system was mounted over %s or removed from it: restart berthd: %w", n,
			d.root, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// writeRecord marks a directory as complete.
func (d *layerDirs) writeRecord(n string, rec *layerFile) error {
	if err := d.within(n); err != nil {
		return err
	}
	return writeLayerRecord(d.home(n), rec)
}

// home is the directory of a layer: its fs, its record, and whether it is synced.
func (d *layerDirs) home(n string) string { return filepath.Join(d.root, n) }

// fs is the directory of a layer that containers see.
func (d *layerDirs) fs(n string) string { return filepath.Join(d.root, n, layerFS) }

// stack returns the directories of layers for overlayfs, top first. The layers come base first. The caller holds
// index.mu.
func (d *layerDirs) stack(layers []*layer) []string {
	var dirs []string
	for _, l := range slices.Backward(layers) {
		if l.isNothing() {
			continue
		}
		dir := d.fs(l.N)
		// Overlayfs refuses a directory twice; the upper one shows all that the lower one would.
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		if l.OpaqueRoot {
			break
		}
	}
	if len(dirs) == 0 {
		dirs = []string{d.fs(emptyLayer)}
	}
	return dirs
}

// recorded reads the layer.json files. Layers that were not synced before the last boot are left out, because the disk
// may not have all their files.
func (d *layerDirs) recorded() (found map[string]layerRecord, unread []error, err error) {
	entries, err := os.ReadDir(d.root)
	if err != nil {
		return nil, nil, err
	}
	found = map[string]layerRecord{}
	for _, e := range entries {
		if e.Name() == emptyLayer {
			continue
		}
		f, err := readLayerRecord(d.home(e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // its pull has not ended
		}
		if disk.Short(err) {
			return nil, nil, err
		}
		if err != nil {
			unread = append(unread, err)
			continue
		}
		r := f.current()
		if r.N != e.Name() {
			continue
		}
		if _, err := os.Lstat(filepath.Join(d.home(r.N), syncedFile)); err == nil {
			r.Boot = ""
		}
		if r.Boot != "" && r.Boot != d.boot {
			continue
		}
		found[r.Key] = r
	}
	return found, unread, nil
}

// syncedFile is made beside fs and layer.json when both have been synced to the disk. A layer without it is not used
// after the next boot.
const syncedFile = "synced"

// doubtfulFile is made beside fs if a sync has failed before fs was synced: see index.doubtful. It holds for the boot
// in which the layer was written, since the layer is not used after that.
const doubtfulFile = "doubtful"

func (d *layerDirs) noteSynced(n string) {
	if err := d.mark(n, syncedFile); err != nil {
		d.log.Warn("a layer would not be found again without the images' database", "layer", n, "error", err)
	}
}

// noteDoubtful marks a layer that is in doubt.
func (d *layerDirs) noteDoubtful(n string) {
	if err := d.mark(n, doubtfulFile); err != nil {
		d.log.Warn("a layer may be taken for synced after a restart of berthd, though a sync has failed", "layer", n,
			"error", err)
	}
}

// mark makes an empty file beside a layer.
func (d *layerDirs) mark(n, name string) error {
	dir := d.home(n)
	if _, err := os.Lstat(filepath.Join(dir, layerFileName)); err != nil || d.within(n) != nil {
		return nil // it is being removed, or out of reach
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	return err
}

// isDoubtful tells whether a layer was marked as being in doubt.
func (d *layerDirs) isDoubtful(n string) bool {
	_, err := os.Lstat(filepath.Join(d.home(n), doubtfulFile))
	return err == nil
}

// remove removes the directory of a layer. The mark of a complete layer goes first: a crash in the middle must not
// leave it on half of one.
func (d *layerDirs) remove(ctx context.Context, n string) error {
	if err := d.within(n); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(d.home(n), layerFileName))
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = d.removeTree(ctx, n, "")
	}
	return err
}

// removeTree removes a layer's directory, or the directory name in it. The tree comes from an image, and may be as deep
// as paths can be long.
func (d *layerDirs) removeTree(ctx context.Context, n, name string) error {
	if err := d.within(n); err != nil {
		return err
	}
	at := filepath.Join(d.home(n), name)
	parent, err := os.Open(filepath.Dir(at))
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := dirtree.Remove(ctx, int(parent.Fd()), filepath.Base(at)); err != nil {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	return nil
}
