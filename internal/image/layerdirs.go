package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"berth/internal/dirtree"
	"berth/internal/disk"
)

// layerDirs is the directory that has a directory for each layer. A caller that makes or removes the directory of a
// layer has first marked it as busy in the index.
type layerDirs struct {
	root string // absolute
	boot string // of the machine
	log  *slog.Logger
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
		if l.Inodes == 0 && !l.OpaqueRoot {
			continue // an empty layer, of which many images have several
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

func (d *layerDirs) noteSynced(n string) {
	dir := d.home(n)
	if _, err := os.Lstat(filepath.Join(dir, layerFileName)); err != nil {
		return // it is being removed
	}
	f, err := os.OpenFile(filepath.Join(dir, syncedFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		d.log.Warn("a layer would not be found again without the images' database", "layer", n, "error", err)
	}
}

// remove removes the directory of a layer. The mark of a complete layer goes first: a crash in the middle must not
// leave it on half of one.
func (d *layerDirs) remove(n string) error {
	err := os.Remove(filepath.Join(d.home(n), layerFileName))
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = d.removeTree(n, "")
	}
	return err
}

// removeTree removes a layer's directory, or the directory name in it. The tree comes from an image, and may be as deep
// as paths can be long.
func (d *layerDirs) removeTree(n, name string) error {
	at := filepath.Join(d.home(n), name)
	parent, err := os.Open(filepath.Dir(at))
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := dirtree.Remove(context.Background(), int(parent.Fd()), filepath.Base(at)); err != nil {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	return nil
}
