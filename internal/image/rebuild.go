package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"

	"berth/internal/disk"
	"berth/internal/image/pages"
	"berth/internal/state"
)

// The database of images is the one file of a node whose loss would cost all images. So each image also has a file of its own, written
// without a sync after the database has it, and each layer has one beside its directory: a database that is spoilt is set aside
// and made anew of these.

// imageFile is an image with its documents, as it is kept beside the database.
type imageFile struct {
	Image    *imageRecord `json:"image"`
	Manifest []byte       `json:"manifest,omitempty"`
	Config   []byte       `json:"config,omitempty"`
}

// keepFile says that directories of layers stay which no record knows: containers of this boot may have them mounted. It holds the boot.
const keepFile = "keep-layers"

func imageFiles(root string) state.Records {
	return state.Records{Dir: filepath.Join(root, "records"), File: "image.json"}
}

func (s *Store) imageFileID(id string) string { return strings.TrimPrefix(id, "sha256:") }

// keepImage writes an image's own file. What fails costs something only if the database is spoilt before the next start of berthd.
func (s *Store) keepImage(r *imageRecord) {
	f := imageFile{Image: r, Manifest: s.cached(r.Manifest), Config: s.cached(digest.Digest(r.ID))}
	if err := s.files.Save(s.imageFileID(r.ID), &f); err != nil {
		s.log.Warn("an image has no file of its own, from which a spoilt database is made anew", "image", r.ID, "error", err)
	}
}

// keepLater writes the file of an image that has changed, off the way of the pull: on a busy ext4 a new directory and file take 2 to 3 ms.
// A crash before leaves it to mend.
func (s *Store) keepLater(id string) {
	s.start(func() {
		s.commit.Lock()
		defer s.commit.Unlock()
		if r := s.image(id); r != nil {
			s.keepImage(r)
		}
	})
}

// dropImage removes an image's own file. It comes before the database forgets the image, so that none that is removed comes back.
func (s *Store) dropImage(id string) {
	if err := os.RemoveAll(s.files.Path(s.imageFileID(id))); err != nil {
		s.log.Warn("the file of a removed image is still there", "image", id, "error", err)
	}
}

// mend writes again what is beside the database and spoilt, or was left out by an earlier version of Berth or a full disk, and removes
// the files of images that are gone: a power failure may take back the removal of a file, and not that of a record. It is called while
// the store is being opened, when nobody removes layers.
func (s *Store) mend() {
	for _, l := range s.layers {
		dir := filepath.Join(s.root, "layers", l.N)
		// What a layer that depends on others needs of them is in its file alone.
		if _, err := readLayerRecord(dir); err != nil && !l.Depends {
			s.log.Warn("the record beside a layer is spoilt or not there, and is written again", "layer", l.Key, "error", err)
			if err := writeLayerRecord(dir, &layerFile{layerRecord: l.layerRecord}); err != nil {
				s.log.Warn("write the record of a layer", "layer", l.Key, "error", err)
			}
		}
		if _, err := os.Lstat(filepath.Join(dir, syncedFile)); l.Boot == "" && errors.Is(err, os.ErrNotExist) {
			s.noteSynced(l.N)
		}
	}
	for id, r := range s.images {
		var f imageFile
		err := s.files.LoadFile(s.imageFileID(id), s.files.File, &f)
		if err == nil && sameRecord(f.Image, r) {
			continue
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.log.Warn("the file of an image is spoilt, and is written again", "image", id, "error", err)
		}
		s.keepImage(r)
	}
	entries, err := os.ReadDir(s.files.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("list the files of images", "error", err)
	}
	for _, e := range entries {
		if id := "sha256:" + e.Name(); s.images[id] == nil {
			s.dropImage(id)
		}
	}
}

func (s *Store) image(id string) *imageRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.images[id]
}

func sameRecord(a, b *imageRecord) bool {
	x, err := json.Marshal(a)
	y, otherErr := json.Marshal(b)
	return err == nil && otherErr == nil && bytes.Equal(x, y)
}

// view and update are bbolt's. A page that has become unreadable under a store that is open is an error, and not the end of berthd.
func (s *Store) view(f func(*bolt.Tx) error) error {
	return caught(func() error { return s.db.View(f) })
}

func (s *Store) update(f func(*bolt.Tx) error) error {
	err := caught(func() error { return s.db.Update(f) })
	if err == nil {
		s.keepRoom()
	}
	return err
}

func caught(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("images.db cannot be read: %v", p)
		}
	}()
	return f()
}

// openChecked opens the database, or sets one aside that is spoilt and makes it anew.
func (s *Store) openChecked() (err error) {
	path := filepath.Join(s.root, "images.db")
	_, statErr := os.Lstat(path)
	lastLost, why := false, statErr
	if statErr == nil {
		lastLost, why = pages.Check(path)
	}
	if why == nil {
		if s.db, err = openRecords(path); err != nil {
			return err
		}
		if why = s.checkRecords(); why == nil {
			if lastLost {
				s.log.Warn("the last change of the images' database is lost; what it was is looked for beside the layers", "file", path)
				// The first pages of the file are written in turn, so that both are whole after this.
				return errors.Join(s.rebuild(true), s.update(func(*bolt.Tx) error { return nil }))
			}
			return nil
		}
		if err := s.db.Close(); err != nil {
			return err
		}
		s.db = nil
	}
	var newer *state.FormatError
	if errors.As(why, &newer) {
		return why
	}
	if errors.Is(why, os.ErrNotExist) {
		// A new node has none, and nothing to make it of.
		if entries, err := os.ReadDir(s.files.Dir); err != nil || len(entries) == 0 {
			s.db, err = openRecords(path)
			return err
		}
		s.log.Error("the images' database is gone; it is made anew of what is beside the layers", "file", path)
	} else {
		aside := fmt.Sprintf("%s.spoilt-%d", path, time.Now().Unix())
		s.log.Error("the images' database is spoilt; it is set aside and made anew of what is beside the layers",
			"file", path, "kept", aside, "error", why)
		if err := os.Rename(path, aside); err != nil {
			return err
		}
	}
	if s.db, err = openRecords(path); err != nil {
		return err
	}
	return s.rebuild(false)
}

// checkRecords reads all records. The pages that hold them are whole, but not each byte in these is covered by that.
func (s *Store) checkRecords() error {
	return s.view(func(tx *bolt.Tx) error {
		layers, blobs := tx.Bucket(bucketLayers), tx.Bucket(bucketBlobs)
		err := tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
			for _, ours := range [][]byte{bucketImages, bucketLayers, bucketBlobs} {
				if bytes.Equal(name, ours) {
					return nil
				}
			}
			return fmt.Errorf("bucket %q is none of ours", name) // one of ours has lost its name
		})
		if err != nil {
			return err
		}
		one := func(k, v []byte, r any, key *string) error {
			err := state.Unseal("the record of "+string(k)+" in images.db", v)
			if err == nil {
				err = json.Unmarshal(v, r)
			}
			if err == nil && *key != string(k) {
				err = fmt.Errorf("it is of %s", *key)
			}
			if err != nil {
				return fmt.Errorf("record of %s: %w", k, err)
			}
			return nil
		}
		err = layers.ForEach(func(k, v []byte) error {
			var r layerRecord
			return one(k, v, &r, &r.Key)
		})
		if err != nil {
			return err
		}
		err = tx.Bucket(bucketImages).ForEach(func(k, v []byte) error {
			var r imageRecord
			if err := one(k, v, &r, &r.ID); err != nil {
				return err
			}
			for _, key := range r.Layers {
				if layers.Get([]byte(key)) == nil {
					return fmt.Errorf("layer %s of image %s is missing", key, r.ID)
				}
			}
			for _, key := range []string{string(r.Manifest), r.ID} {
				if blobs.Get([]byte(key)) == nil {
					return fmt.Errorf("document %s of image %s is missing", key, r.ID)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		return blobs.ForEach(func(k, v []byte) error {
			if d, err := digest.Parse(string(k)); err != nil || d.Algorithm() == digest.SHA256 && digest.FromBytes(v) != d {
				return fmt.Errorf("document %s is not as it was pulled", k)
			}
			return nil
		})
	})
}

// rebuild enters into the database what is beside the layers and not in it.
func (s *Store) rebuild(quiet bool) error {
	found := map[string]*imageFile{}
	broken, spared, err := s.files.Load(func(id string) any { found[id] = &imageFile{}; return found[id] })
	if err != nil {
		return err
	}
	for _, o := range spared {
		s.log.Warn("the newest version of a record is spoilt, and its second file was read", "image", o.ID, "error", o.Err)
	}
	lost := false
	for _, b := range broken {
		delete(found, b.ID)
		lost = true
		s.log.Error("an image is lost: it must be pulled again", "image", "sha256:"+b.ID, "error", b.Err)
	}
	layers, unread, err := s.layersOnDisk()
	if err != nil {
		return err
	}
	for _, e := range unread {
		lost = true
		s.log.Error("a layer of an image is lost", "error", e)
	}
	images := 0
	err = s.update(func(tx *bolt.Tx) error {
		for key, r := range layers {
			if tx.Bucket(bucketLayers).Get([]byte(key)) != nil {
				continue
			}
			if err := put(tx, bucketLayers, key, r); err != nil {
				return err
			}
		}
	next:
		for id, f := range found {
			if f.Image == nil || s.imageFileID(f.Image.ID) != id || tx.Bucket(bucketImages).Get([]byte(f.Image.ID)) != nil {
				continue
			}
			for _, key := range f.Image.Layers {
				if tx.Bucket(bucketLayers).Get([]byte(key)) == nil {
					lost = true
					s.log.Error("an image is lost: it must be pulled again", "image", f.Image.ID, "tags", f.Image.Tags, "layer", key)
					continue next
				}
			}
			images++
			if err := put(tx, bucketImages, f.Image.ID, f.Image); err != nil {
				return err
			}
			for key, data := range map[string][]byte{string(f.Image.Manifest): f.Manifest, f.Image.ID: f.Config} {
				if len(data) == 0 {
					continue
				}
				if err := tx.Bucket(bucketBlobs).Put([]byte(key), data); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("make images.db anew: %w", disk.Exhausted(err))
	}
	if !quiet || images > 0 {
		s.log.Warn("the images' database has been made anew", "images", images, "layers", len(layers), "all_found", !lost)
	}
	if quiet {
		return nil
	}
	// Images that are not known to be lost may be lost, too: an earlier version of Berth has written none of these files.
	return os.WriteFile(filepath.Join(s.root, keepFile), []byte(s.boot), 0o600)
}

// layersOnDisk reads what is recorded beside layers. Those that may not be on disk as they were written are left out.
func (s *Store) layersOnDisk() (found map[string]layerRecord, unread []error, err error) {
	dir := filepath.Join(s.root, "layers")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	found = map[string]layerRecord{}
	for _, e := range entries {
		if e.Name() == emptyLayer {
			continue
		}
		f, err := readLayerRecord(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // its pull has not ended
		}
		if err != nil {
			unread = append(unread, err)
			continue
		}
		r := f.current()
		if r.N != e.Name() {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, r.N, syncedFile)); err == nil {
			r.Boot = ""
		}
		if r.Boot != "" && r.Boot != s.boot {
			continue
		}
		found[r.Key] = r
	}
	return found, unread, nil
}

// syncedFile, beside a layer's directory, says that both are on disk. Without it a layer counts until the next boot.
const syncedFile = "synced"

func (s *Store) noteSynced(n string) {
	dir := filepath.Join(s.root, "layers", n)
	if _, err := os.Lstat(filepath.Join(dir, layerFileName)); err != nil {
		return // it is being removed
	}
	f, err := os.OpenFile(filepath.Join(dir, syncedFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		s.log.Warn("a layer would not be found again without the images' database", "layer", n, "error", err)
	}
}

// keepsLayers tells whether layers that no record knows have to stay.
func (s *Store) keepsLayers() bool {
	path := filepath.Join(s.root, keepFile)
	boot, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	if string(boot) == s.boot {
		return true
	}
	if err := os.Remove(path); err != nil {
		s.log.Warn("layers that nobody needs stay", "error", err)
	}
	return false
}
