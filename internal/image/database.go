package image

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"

	"berth/internal/disk"
	"berth/internal/state"
)

// databaseFile is the name of the database in the root of the store.
const databaseFile = "images.db"

// database is the records of images and layers on disk, with the documents of images: a bbolt database, and a file
// beside it for each image, of which a database that is spoilt is made anew.
type database struct {
	root   string // of the store
	boot   string // of the machine
	log    *slog.Logger
	layers *layerDirs // of which a spoilt database is made anew
	bolt   *bolt.DB   // see view and update

	commit  sync.Mutex    // held while records change on disk; taken before index.mu
	files   state.Records // an imageFile for each image; guarded by commit
	roomFor int64         // the size of the database for which there is room on the disk; guarded by commit
}

// view and update are bbolt's. A page that has become unreadable under a store that is open is an error, and not the
// end of berthd.
func (d *database) view(f func(*bolt.Tx) error) error {
	return caught(func() error { return d.bolt.View(f) })
}

func (d *database) update(f func(*bolt.Tx) error) error {
	err := caught(func() error { return d.bolt.Update(f) })
	if err == nil {
		d.keepRoom()
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

// cached is a manifest or a configuration of an image that is here.
func (d *database) cached(blob digest.Digest) []byte {
	var data []byte
	_ = d.view(func(tx *bolt.Tx) error {
		data = slices.Clone(tx.Bucket(bucketBlobs).Get([]byte(blob)))
		return nil
	})
	return data
}

// keepImage writes an image's own file. What fails costs something only if the database is spoilt before the next
// start of berthd.
func (d *database) keepImage(r *imageRecord) {
	f := imageFile{Manifest: d.cached(r.Manifest)}
	if r.Artifact == "" {
		f.Config = d.cached(digest.Digest(r.ID))
	}
	var err error
	if f.Image, err = r.whole(f.Config); err == nil {
		err = d.files.Save(imageFileID(r.ID), &f)
	}
	if err != nil {
		d.log.Warn("an image has no file of its own, from which a spoilt database is made anew",
			"image_id", r.ID, "error", err)
	}
}

// dropImage removes an image's own file. It comes before the database forgets the image, so that none that is removed
// comes back.
func (d *database) dropImage(id string) {
	if err := os.RemoveAll(d.files.Path(imageFileID(id))); err != nil {
		d.log.Warn("the file of a removed image is still there", "image_id", id, "error", err)
	}
}

// forget takes an image, documents that no other image has, and layers that nothing needs out of the database. The
// directories of these go afterwards, whatever the database says: on a full disk it may have no room for a change, and
// what is recorded but not there is found out by Open. database.commit is held.
func (d *database) forget(r *imageRecord, documents []digest.Digest, unused []*layer) error {
	d.dropImage(r.ID)
	return d.update(func(tx *bolt.Tx) error {
		if err := tx.Bucket(bucketImages).Delete([]byte(r.ID)); err != nil {
			return err
		}
		for _, l := range unused {
			if err := tx.Bucket(bucketLayers).Delete([]byte(l.Key)); err != nil {
				return err
			}
		}
		for _, document := range documents {
			if err := tx.Bucket(bucketBlobs).Delete([]byte(document)); err != nil {
				return err
			}
		}
		return nil
	})
}

// shrink records that an image needs some layers no longer, and takes those that nothing needs out of the database.
// database.commit is held.
func (d *database) shrink(r *imageRecord, unused []*layer) error {
	return d.update(func(tx *bolt.Tx) error {
		for _, l := range unused {
			if err := tx.Bucket(bucketLayers).Delete([]byte(l.Key)); err != nil {
				return err
			}
		}
		return putImage(tx, r)
	})
}

// keepsFor is the boot in which no layer is removed that no record knows; empty: there is none.
func (d *database) keepsFor() (boot string, err error) {
	data, err := os.ReadFile(filepath.Join(d.root, keepFile))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(data), err
}

// keepLayers has layers that no record knows stay until another boot.
func (d *database) keepLayers() error {
	return disk.WriteFile(filepath.Join(d.root, keepFile), []byte(d.boot), 0o600)
}

// keepsLayers tells whether layers that no record knows have to stay.
func (d *database) keepsLayers() bool {
	boot, err := d.keepsFor()
	if err != nil {
		d.log.Warn("layers that nobody needs stay", "error", err)
		return true
	}
	if boot == d.boot {
		return true
	}
	if boot == "" {
		return false
	}
	if err := os.Remove(filepath.Join(d.root, keepFile)); err != nil {
		d.log.Warn("layers that nobody needs stay", "error", err)
	}
	return false
}
