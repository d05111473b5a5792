package image

import (
	"fmt"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// syncRetry is how long the store waits after a sync of the disk that has failed.
const syncRetry = 30 * time.Second

// Unsynced is what a failure of power would lose now: layers that are not known to be on disk.
type Unsynced struct {
	Layers  int       `json:"layers"`
	Since   time.Time `json:"since,omitzero"`    // when a sync was asked for that is not over; zero: none was
	Failure string    `json:"failure,omitempty"` // of the last sync; empty: it has not failed
	Synced  time.Time `json:"synced,omitzero"`   // when this berthd has synced last; zero: never
}

// Unsynced says what a failure of power would lose now.
func (s *Store) Unsynced() Unsynced {
	u := Unsynced{Layers: len(s.unsynced())}
	since, last, failure := s.syncs.State()
	u.Synced = last
	if failure != nil {
		u.Failure = failure.Error()
	}
	if u.Layers > 0 {
		u.Since = since
	}
	return u
}

// unsynced are the layers that are complete and not known to be on disk.
func (s *Store) unsynced() (layers []*layer) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for _, l := range s.index.layers {
		if l.Boot != "" && l.recorded {
			layers = append(layers, l)
		}
	}
	return layers
}

// Sync returns when all images that are here now are on the disk, and the records say so.
func (s *Store) Sync() error {
	if err := s.sync(); err != nil {
		return err
	}
	s.db.commit.Lock() // another sync may be writing its records
	defer s.db.commit.Unlock()
	return nil
}

// sync brings what was pulled to disk, and then says so in the records.
func (s *Store) sync() error {
	layers := s.unsynced()
	if len(layers) == 0 {
		return nil
	}
	dir, err := os.Open(s.root)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", s.root, err)
	}
	for _, l := range layers {
		s.dirs.noteSynced(l.N)
	}

	s.db.commit.Lock()
	defer s.db.commit.Unlock()
	var records []layerRecord
	s.index.mu.Lock()
	for _, l := range layers {
		if s.index.layers[l.Key] == l {
			l.Boot = ""
			records = append(records, l.layerRecord)
		}
	}
	s.index.mu.Unlock()
	return s.db.update(func(tx *bolt.Tx) error {
		for _, l := range records {
			if err := put(tx, bucketLayers, l.Key, l); err != nil {
				return err
			}
		}
		return nil
	})
}
