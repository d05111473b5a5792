package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"

	"berth/internal/disk"
	"berth/internal/image/pages"
	"berth/internal/state"
)

// The database of images is the one file of a node whose loss would cost all images. So each image also has a file of
// its own, written without a sync after the database has it, and each layer has one beside its directory: a database
// that is spoilt is set aside, and another one is made of these files.

// imageFile is an image with its documents, as it is kept beside the database.
type imageFile struct {
	Image    *imageRecord `json:"image"`
	Manifest []byte       `json:"manifest,omitempty"`
	Config   []byte       `json:"config,omitempty"`
}

// keepFile says that directories of layers stay which no record knows: containers of this boot may have them mounted.
// It holds the boot.
const keepFile = "keep-layers"

func imageFiles(root string) state.Records {
	return state.Records{Dir: filepath.Join(root, "records"), File: "image.json", Replaceable: true}
}

func imageFileID(id string) string { return strings.TrimPrefix(id, "sha256:") }

// keepLater writes the file of an image that has changed, off the way of the pull: on a busy ext4 a new directory and
// file take 2 to 3 ms. A crash before leaves it to mend.
func (s *Store) keepLater(id string) {
	s.start(func() {
		s.db.commit.Lock()
		defer s.db.commit.Unlock()
		if r := s.index.image(id); r != nil {
			s.db.keepImage(r)
		}
	})
}

// mend writes again what is beside the database and spoilt, or was left out by an earlier version of Berth or a full
// disk, and removes the files of images that are gone: a power failure may take back the removal of a file, and not
// that of a record. It is called while the store is being opened, when nobody removes layers.
func (s *Store) mend() {
	for _, l := range s.index.layers {
		dir := s.dirs.home(l.N)
		// What a layer that depends on others needs of them is in its file alone.
		if _, err := readLayerRecord(dir); err != nil && !l.Depends {
			s.log.Warn("the record beside a layer is spoilt or not there, and is written again", "layer", l.Key, "error", err)
			if err := writeLayerRecord(dir, &layerFile{layerRecord: l.layerRecord}); err != nil {
				s.log.Warn("write the record of a layer", "layer", l.Key, "error", err)
			}
		}
		if _, err := os.Lstat(filepath.Join(dir, syncedFile)); l.Boot == "" && errors.Is(err, os.ErrNotExist) {
			s.dirs.noteSynced(l.N)
		}
	}
	for id, r := range s.index.images {
		var f imageFile
		err := s.db.files.LoadFile(imageFileID(id), s.db.files.File, &f)
		if err == nil && sameRecord(f.Image, r) {
			continue
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.log.Warn("the file of an image is spoilt, and is written again", "image_id", id, "error", err)
		}
		s.db.keepImage(r)
	}
	entries, err := os.ReadDir(s.db.files.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("list the files of images", "error", err)
	}
	for _, e := range entries {
		if id := wholeID(e.Name()); s.index.images[id] == nil && s.index.lost[id] == nil {
			s.db.dropImage(id)
		}
	}
}

func sameRecord(a, b *imageRecord) bool {
	x, err := json.Marshal(a)
	y, otherErr := json.Marshal(b)
	return err == nil && otherErr == nil && bytes.Equal(x, y)
}

// openChecked opens the database, or sets one aside that is spoilt and makes it anew.
func (d *database) openChecked() (err error) {
	path := filepath.Join(d.root, databaseFile)
	_, statErr := os.Lstat(path)
	lastLost, why := false, statErr
	if statErr == nil {
		lastLost, why = pages.Check(path)
	}
	if disk.Short(why) {
		return why
	}
	if why == nil {
		if d.bolt, err = openRecords(path); err != nil {
			return err
		}
		if why = d.checkRecords(); why == nil {
			if lastLost {
				d.log.Warn("the last change of the images' database is lost; what it was is looked for beside the layers",
					"file", path)
				// The first pages of the file are written in turn, so that both are whole after this.
				return errors.Join(d.rebuild(true), d.update(func(*bolt.Tx) error { return nil }))
			}
			return nil
		}
		if err := d.bolt.Close(); err != nil {
			return err
		}
		d.bolt = nil
	}
	var newer *state.FormatError
	if errors.As(why, &newer) {
		return why
	}
	if errors.Is(why, os.ErrNotExist) {
		// A new node has none, and nothing to make it of.
		if entries, err := os.ReadDir(d.files.Dir); err != nil || len(entries) == 0 {
			d.bolt, err = openRecords(path)
			return err
		}
		d.log.Error("the images' database is gone; it is made anew of what is beside the layers", "file", path)
	} else {
		aside := fmt.Sprintf("%s.spoilt-%d", path, time.Now().Unix())
		d.log.Error("the images' database is spoilt; it is set aside and made anew of what is beside the layers",
			"file", path, "kept", aside, "error", why)
		if err := os.Rename(path, aside); err != nil {
			return err
		}
	}
	// The new database gets its name when all is in it: a start that fails or is killed before is made up for by the next.
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if d.bolt, err = openRecords(fresh); err != nil {
		return err
	}
	if err := d.rebuild(false); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// checkRecords reads all records. The pages that hold them are whole, but not each byte in these is covered by that.
func (d *database) checkRecords() error {
	return d.view(func(tx *bolt.Tx) error {
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
func (d *database) rebuild(quiet bool) error {
	found, broken, spared, err := state.LoadAll[imageFile](d.files)
	if err != nil {
		return err
	}
	for _, o := range spared {
		d.log.Warn("the newest version of a record is spoilt, and its second file was read", "image_id", o.ID, "error", o.Err)
	}
	lost := false
	for _, b := range broken {
		lost = true
		d.log.Error("an image is lost: it must be pulled again", "image_id", wholeID(b.ID), "error", b.Err)
	}
	layers, unread, err := d.layers.recorded()
	if err != nil {
		return err
	}
	for _, e := range unread {
		lost = true
		d.log.Error("a layer of an image is lost", "error", e)
	}
	images, entered := 0, map[string]*imageRecord{}
	var without []*imageRecord // images that are lost
	err = d.update(func(tx *bolt.Tx) error {
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
			if f.Image == nil || imageFileID(f.Image.ID) != id || tx.Bucket(bucketImages).Get([]byte(f.Image.ID)) != nil {
				continue
			}
			for _, key := range f.Image.Layers {
				if tx.Bucket(bucketLayers).Get([]byte(key)) == nil {
					lost = true
					d.log.Error("an image is lost: it must be pulled again", "image_id", f.Image.ID,
						"tags", f.Image.Tags, "layer", key)
					without = append(without, f.Image)
					continue next
				}
			}
			images++
			entered[f.Image.ID] = f.Image
			if err := put(tx, bucketImages, f.Image.ID, f.Image); err != nil {
				return err
			}
			// The manifest comes last: its digest is the ID of an artifact, which has no configuration here.
			for _, document := range []struct {
				key  string
				data []byte
			}{{f.Image.ID, f.Config}, {string(f.Image.Manifest), f.Manifest}} {
				if len(document.data) == 0 {
					continue
				}
				if err := tx.Bucket(bucketBlobs).Put([]byte(document.key), document.data); err != nil {
					return err
				}
			}
		}
		for id, r := range givenBack(without, entered) {
			if err := put(tx, bucketImages, id, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("make images.db anew: %w", disk.Exhausted(err))
	}
	if !quiet || images > 0 {
		d.log.Warn("the images' database has been made anew", "images", images, "layers", len(layers), "all_found", !lost)
	}
	if quiet {
		return nil
	}
	// Images that are not known to be lost may be lost, too: an earlier version of Berth has written none of these
	// files.
	return d.keepLayers()
}
