package image

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// syncRetry is how long the store waits after a sync of the disk that has failed.
const syncRetry = 30 * time.Second

// syncing is a sync of the disk.
type syncing struct {
	// mu is held during a sync: the kernel reports the failure of a write to one caller only. It is taken before
	// database.commit.
	mu sync.Mutex
	fs func(fd int) error // unix.Syncfs
}

// Unsynced is what a failure of power would lose now: layers that are not known to be on disk.
type Unsynced struct {
	Layers  int       `json:"layers"`
	Since   time.Time `json:"since,omitzero"`    // when a sync was asked for that is not over; zero: none was
	Failure string    `json:"failure,omitempty"` // of the last sync, or of one that has left layers in doubt; empty: none
	Synced  time.Time `json:"synced,omitzero"`   // when this berthd has synced last; zero: never
}

// Unsynced says what a failure of power would lose now.
func (s *Store) Unsynced() Unsynced {
	doubtful := s.doubtful()
	u := Unsynced{Layers: len(s.unsynced()) + doubtful}
	since, last, failure := s.syncs.State()
	u.Synced = last
	if failure == nil {
		failure = doubt(doubtful)
	}
	if failure != nil {
		u.Failure = failure.Error()
	}
	if u.Layers > 0 {
		u.Since = since
	}
	return u
}

// unsynced are the layers that are complete and not known to be on disk, but for those that are in doubt.
func (s *Store) unsynced() (layers []*layer) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for _, l := range s.index.layers {
		if l.Boot != "" && l.recorded && !s.index.doubtful[l.N] {
			layers = append(layers, l)
		}
	}
	return layers
}

// doubtful is the number of layers that are in doubt: see index.doubtful.
func (s *Store) doubtful() (n int) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for _, l := range s.index.layers {
		if s.index.doubtful[l.N] && l.recorded {
			n++
		}
	}
	return n
}

// doubt is the error about layers that are in doubt; nil: there are none.
func doubt(layers int) error {
	if layers == 0 {
		return nil
	}
	return fmt.Errorf("%d layers were being written when a sync failed, and the disk may not have all of their files: "+
		"remove their images and pull them again: %w", layers, errdefs.ErrDataLoss)
}

// Sync returns when all images that are here now are on the disk, and the records say so.
func (s *Store) Sync() error {
	if err := s.sync(); err != nil {
		return err
	}
	return doubt(s.doubtful())
}

// sync brings what was pulled to disk, and then says so in the records. Layers that are in doubt are left out.
func (s *Store) sync() error {
	s.syncing.mu.Lock()
	defer s.syncing.mu.Unlock()
	s.markDoubtful() // also those that were being made when a sync failed
	layers := s.unsynced()
	if len(layers) == 0 {
		return nil
	}
	if err := s.syncDisk(); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", s.root, err)
	}
	for _, l := range layers {
		s.dirs.noteSynced(l.N)
	}

	s.db.commit.Lock()
	defer s.db.commit.Unlock()
	s.index.mu.Lock()
	layers = slices.DeleteFunc(layers, func(l *layer) bool { return s.index.layers[l.Key] != l })
	images := s.index.synced(layers)
	s.index.mu.Unlock()
	err := s.db.update(func(tx *bolt.Tx) error {
		for _, l := range layers {
			synced := l.layerRecord
			synced.Boot = ""
			if err := put(tx, bucketLayers, l.Key, synced); err != nil {
				return err
			}
		}
		for _, r := range images {
			if err := putImage(tx, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.index.mu.Lock() // only now: while a layer has its Boot, the sync is tried again
	for _, l := range layers {
		l.Boot = ""
	}
	s.index.replace(images...)
	s.index.mu.Unlock()
	for _, r := range images {
		s.keepLater(r.ID)
	}
	return nil
}

// syncDisk syncs the store's file system by a descriptor that is open as long as the store is: the kernel reports the
// failure of a write once to each descriptor, and does not report it to one that is opened after another was told.
func (s *Store) syncDisk() error {
	if err := s.syncFS(s.lock); err != nil {
		return err
	}
	now, err := os.Open(s.root)
	if err != nil {
		return err
	}
	defer now.Close()
	opened, err := s.lock.Stat()
	if err != nil {
		return err
	}
	if found, err := now.Stat(); err != nil || os.SameFile(opened, found) {
		return err
	}
	return s.syncFS(now) // another file system was mounted over the root
}

// syncFS syncs a file system. If that fails, what was not synced is in doubt.
func (s *Store) syncFS(of *os.File) error {
	err := s.syncing.fs(int(of.Fd()))
	if err != nil && !errors.Is(err, unix.EBADF) { // that of a store that was closed
		s.index.mu.Lock()
		s.index.doubt()
		s.index.mu.Unlock()
		s.markDoubtful()
	}
	return err
}

// markDoubtful marks the directories of layers that are in doubt, for a berthd that starts again in this boot.
func (s *Store) markDoubtful() {
	var dirs []string
	s.index.mu.Lock()
	for _, l := range s.index.layers {
		if s.index.doubtful[l.N] {
			dirs = append(dirs, l.N)
		}
	}
	s.index.mu.Unlock()
	for _, n := range dirs {
		s.dirs.noteDoubtful(n)
	}
}
