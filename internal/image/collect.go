package image

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
)

// unneeded tells whether an image has something that was kept for holders alone, and none refers to the image any more.
// index.mu is held.
func (x *index) unneeded(r *imageRecord) bool {
	return r != nil && (r.Removed || len(r.Replaced) > 0) && !x.referenced(r.ID)
}

// dropUnneeded finishes the removal of images that nothing refers to any more, and removes the remote layers that were
// replaced in others.
func (s *Store) dropUnneeded(ctx context.Context) error {
	var errs []error
	var unused []*layer
	s.db.commit.Lock()
	s.index.mu.Lock()
	var images []*imageRecord
	for _, r := range s.index.images {
		if s.index.unneeded(r) {
			images = append(images, r)
		}
	}
	layers := make([][]*layer, len(images))
	documents := make([][]digest.Digest, len(images))
	for i, r := range images {
		if r.Removed {
			layers[i] = s.index.drop(r)
			documents[i] = s.index.ownDocuments(r)
			continue
		}
		images[i] = r.with(func(c *imageRecord) { c.Replaced = nil })
		layers[i] = s.index.replace(images[i])
	}
	s.index.mu.Unlock()
	for i, r := range images {
		if r.Removed {
			errs = append(errs, s.db.forget(r, documents[i], layers[i]))
		} else {
			errs = append(errs, s.db.shrink(r, layers[i]))
			s.keepLater(r.ID)
		}
		unused = append(unused, layers[i]...)
	}
	s.db.commit.Unlock()
	return errors.Join(append(errs, s.removeDirs(ctx, unused))...)
}

// Collect removes what crashes left, and layers that nothing needs. It is called once after a start, when all holders
// have added their references. It may take minutes, since layers may be millions of files, and the store can be used
// meanwhile: a layer leaves the index before its directory goes, and a new one gets a higher number than all that are
// there. Where ctx ends it early, or a kill, the next start goes on.
func (s *Store) Collect(ctx context.Context) error {
	// Snapshots have others above them, which must go first: removeLater tries again.
	s.remote.collecting.Store(true)
	defer s.remote.collecting.Store(false)
	s.keepLost()
	err := s.dropUnneeded(ctx)
	err = errors.Join(err, s.collectLayers(ctx))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// keepLost gives up lost images that nobody wanted to refer to, and notes that the layers of the others stay.
func (s *Store) keepLost() {
	s.index.mu.Lock()
	for id, r := range s.index.lost {
		if r.wanted {
			continue
		}
		delete(s.index.lost, id)
		for _, key := range r.mounted() {
			if l := s.index.layers[key]; l != nil {
				l.refs--
			}
		}
	}
	wanted := len(s.index.lost) > 0
	s.index.mu.Unlock()
	if boot, err := s.db.keepsFor(); !wanted || err == nil && boot != "" {
		return
	}
	if err := s.db.keepLayers(); err != nil {
		s.log.Warn("layers of lost images may be kept for longer than this boot", "error", err)
	}
}

// collectLayers removes unneeded layers, but those that were complete when a pull died: the same pull will come again.
func (s *Store) collectLayers(ctx context.Context) error {
	if s.db.keepsLayers() {
		return s.purge()
	}
	s.index.mu.Lock()
	var unused []*layer
	later := false
	for _, l := range s.index.layers {
		if l.refs > 0 {
			continue
		}
		if l.adopted {
			later = true
			continue
		}
		l.refs = 1
		unused = append(unused, s.index.unref(l)...)
	}
	known := map[string]bool{emptyLayer: true}
	for _, l := range s.index.layers {
		known[l.N] = true
	}
	for n := range s.index.busy {
		known[n] = true
	}
	s.index.mu.Unlock()

	err := s.removeLayers(ctx, unused)
	entries, readErr := os.ReadDir(s.dirs.root)
	err = errors.Join(err, readErr)
	for _, e := range entries {
		if ctx.Err() != nil {
			break
		}
		s.index.mu.Lock()
		// Numbers only grow: a directory that was not known above and is not busy now belongs to no layer.
		v, ok := parseNumber(e.Name())
		leftover := !known[e.Name()] && !s.index.busy[e.Name()] && (!ok || v < s.index.next) && !s.index.knows(e.Name())
		if leftover {
			s.index.busy[e.Name()] = true
		}
		s.index.mu.Unlock()
		if leftover {
			s.log.Info("leftover of a pull is removed", "layer", e.Name())
			err = errors.Join(err, s.removeDir(ctx, e.Name()))
		}
	}
	err = errors.Join(err, s.purge())
	if later {
		s.expireLater()
	}
	return err
}

// expireLater removes complete layers that no pull has come for, when they are Config.LeftoverAge old. One goroutine at
// a time waits for that.
func (s *Store) expireLater() {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if s.index.closed || s.index.expiring {
		return
	}
	s.index.expiring = true
	s.work.Go(func() {
		for {
			next, left := s.expire(s.cfg.LeftoverAge)
			if !left {
				return
			}
			timer := time.NewTimer(time.Until(next))
			select {
			case <-timer.C:
			case <-s.ctx.Done():
				timer.Stop()
				return
			}
		}
	})
}

// dropLeftovers removes complete layers that no pull has come for, whatever their age.
func (s *Store) dropLeftovers() { s.expire(0) }

// expire removes layers that are adopted and of an age. It returns when the next one will be; false: none is left, and
// index.expiring is no longer set. While layers of lost images are kept, whose containers may have any of them mounted,
// it removes nothing.
func (s *Store) expire(age time.Duration) (next time.Time, left bool) {
	keeps := s.db.keepsLayers()
	var unused []*layer
	now := time.Now()
	s.index.mu.Lock()
	for _, l := range s.index.layers {
		due := l.since.Add(age)
		switch {
		case !l.adopted || l.refs > 0 || keeps:
		case !now.Before(due):
			l.refs = 1
			unused = append(unused, s.index.unref(l)...)
		case !left || due.Before(next):
			next, left = due, true
		}
	}
	if !left && age > 0 {
		s.index.expiring = false
	}
	s.index.mu.Unlock()
	for _, l := range unused {
		s.log.Info("leftover of a pull is removed", "layer", l.N)
	}
	if err := s.removeLayers(s.ctx, unused); err != nil {
		s.log.Warn("leftovers of pulls are still there", "error", err)
	}
	return next, left
}

// purge removes the records of images and layers from the database that the index does not have.
func (s *Store) purge() error {
	s.db.commit.Lock()
	defer s.db.commit.Unlock()
	keep := map[string]bool{}
	s.index.mu.Lock()
	for id, r := range s.index.images {
		keep[id], keep[string(r.Manifest)] = true, true
	}
	for key := range s.index.layers {
		keep[key] = true
	}
	for id, r := range s.index.lost {
		keep[id], keep[string(r.Manifest)] = true, true
		for _, key := range r.mounted() {
			keep[key] = true
		}
	}
	s.index.mu.Unlock()
	type stale struct{ bucket, key []byte }
	var gone []stale
	err := s.db.view(func(tx *bolt.Tx) error {
		for _, b := range [][]byte{bucketImages, bucketLayers, bucketBlobs} {
			err := tx.Bucket(b).ForEach(func(k, _ []byte) error {
				if !keep[string(k)] {
					gone = append(gone, stale{b, slices.Clone(k)})
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(gone) == 0 {
		return err
	}
	for _, g := range gone {
		if string(g.bucket) == string(bucketImages) {
			s.db.dropImage(string(g.key))
		}
	}
	return s.db.update(func(tx *bolt.Tx) error {
		for _, g := range gone {
			if err := tx.Bucket(g.bucket).Delete(g.key); err != nil {
				return err
			}
		}
		return nil
	})
}

// removeLayers removes layers that are no longer in the index: their records, then their directories. A pull may have
// brought such a layer back since, with a directory of its own: the record is that one's then, and stays.
func (s *Store) removeLayers(ctx context.Context, unused []*layer) error {
	var err error
	if slices.ContainsFunc(unused, func(l *layer) bool { return l.recorded }) {
		s.db.commit.Lock()
		var keys []string
		s.index.mu.Lock()
		for _, l := range unused {
			if again := s.index.layers[l.Key]; again == nil || !again.recorded {
				keys = append(keys, l.Key)
			}
		}
		s.index.mu.Unlock()
		err = s.db.update(func(tx *bolt.Tx) error {
			for _, key := range keys {
				if err := tx.Bucket(bucketLayers).Delete([]byte(key)); err != nil {
					return err
				}
			}
			return nil
		})
		s.db.commit.Unlock()
	}
	return errors.Join(err, s.removeDirs(ctx, unused))
}

func (s *Store) removeDirs(ctx context.Context, layers []*layer) error {
	var errs []error
	for _, l := range byDepth(layers) {
		errs = append(errs, s.removeDir(ctx, l.N))
	}
	return errors.Join(errs...)
}

// removeDir removes a layer's directory. The caller has marked it as busy in the index. That of a remote layer is
// removed once its snapshot is, which may be later. If ctx ends before all is removed, the next start removes the rest.
func (s *Store) removeDir(ctx context.Context, n string) error {
	if err := s.dirs.within(n); err != nil {
		s.index.release(n)
		return err
	}
	if s.remote.collecting.Load() && s.dirs.hasSnapshot(n) {
		s.removeLater(n)
		return nil
	}
	if err := s.removeSnapshot(s.ctx, n); err != nil {
		s.log.Warn("a remote layer is not removed yet", "layer", n, "error", err)
		var other *otherSnapshotterError
		if !errors.As(err, &other) { // a configuration that has it again begins with a new start
			s.removeLater(n)
		}
		return nil
	}
	return s.removeFiles(ctx, n)
}

func (s *Store) removeFiles(ctx context.Context, n string) error {
	err := s.dirs.remove(ctx, n)
	s.index.release(n)
	return err
}
