package image

import (
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// wantSync asks for the disk to be synced soon.
func (s *Store) wantSync() {
	select {
	case s.syncs <- struct{}{}:
	default:
	}
}

// syncer brings what was pulled to disk, and then says so in the records. It runs until Close.
func (s *Store) syncer() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.syncs:
			if err := s.sync(); err != nil {
				s.log.Warn("images are not known to be on disk", "error", err)
			}
		}
	}
}

func (s *Store) sync() error {
	var layers []*layer
	s.index.mu.Lock()
	for _, l := range s.index.layers {
		if l.Boot != "" && l.recorded {
			layers = append(layers, l)
		}
	}
	s.index.mu.Unlock()
	if len(layers) == 0 {
		return nil
	}
	dir, err := os.Open(s.root)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", s.root, err)
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
