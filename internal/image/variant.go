package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"berth/internal/image/unpack"
	"berth/internal/image/variant"
)

// chainKey starts the key of a variant.
const chainKey = "chain:"

// stagingDir is where a variant of a layer is made, in the layer's own directory: hard links do not cross mounts, and whoever
// makes it may see no more than that directory. One that is left by a crash is set aside by Open.
const stagingDir = "variant"

// arrange replaces those layers of an image (base first, each with a reference of the caller's) which must be variants: see
// package variant.
func (s *Store) arrange(ctx context.Context, layers []*layer) error {
	diffIDs := make([]digest.Digest, len(layers))
	for i, l := range layers {
		diffIDs[i] = digest.Digest(l.DiffID)
	}
	left := s.cfg.Limits.Lookups
	for i, l := range layers {
		if i == 0 || !l.Depends {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		chain := identity.ChainID(append([]digest.Digest(nil), diffIDs[:i+1]...))
		v, err := s.variant(ctx, l, chainKey+chain.String(), layers[:i], &left)
		if err != nil {
			return fmt.Errorf("layer %s: %w", l.DiffID, diskError(err))
		}
		if v == nil {
			continue
		}
		layers[i] = v
		s.mu.Lock()
		unused := s.unref(l)
		s.mu.Unlock()
		if err := s.trash(unused); err != nil {
			s.log.Warn("leftover of a pull is still there", "error", err)
		}
	}
	return nil
}

// variant returns the layer's variant under a key, made if it is not there, with a reference for the caller; nil: the layer is
// right as it is. left are the lookups that the image may still take.
func (s *Store) variant(ctx context.Context, l *layer, key string, below []*layer, left *uint64) (*layer, error) {
	release, err := s.alone(ctx, l)
	if err != nil {
		return nil, err
	}
	defer release()
	s.mu.Lock()
	if v := s.layers[key]; v != nil {
		v.refs++
		s.mu.Unlock()
		return v, nil
	}
	s.mu.Unlock()

	home := filepath.Join(s.root, "layers", l.N)
	result, err := s.makeVariant(ctx, l, home, below, *left)
	if err == nil {
		*left = max(*left-min(*left, result.Lookups), 1) // 0 would be no limit
	}
	if err == nil && !result.Made {
		return nil, nil
	}
	// What was made moves to a number of its own, whole or not.
	n := s.newDir()
	dir := filepath.Join(s.root, "layers", n)
	rec := l.layerRecord
	rec.N, rec.Key, rec.Boot, rec.Depends = n, key, s.boot, false
	err = errors.Join(err, os.Mkdir(dir, 0o700))
	e := os.Rename(filepath.Join(home, stagingDir), filepath.Join(dir, "fs"))
	if err == nil || !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	if err == nil {
		rec.Inodes += result.Inodes
		rec.Bytes += result.Bytes
		err = writeLayerRecord(dir, &layerFile{layerRecord: rec})
	}
	if err != nil {
		return nil, errors.Join(err, s.removeDir(n))
	}
	v := &layer{layerRecord: rec, refs: 1}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, n)
	s.layers[key] = v
	return v, nil
}

// alone waits until nobody else makes a variant of a layer: all are made in one place.
func (s *Store) alone(ctx context.Context, l *layer) (release func(), err error) {
	for {
		s.mu.Lock()
		other := s.variants[l.N]
		if other == nil {
			done := make(chan struct{})
			s.variants[l.N] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.variants, l.N)
				s.mu.Unlock()
				close(done)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// makeVariant makes the variant of a layer in the layer's own directory, if it needs one.
func (s *Store) makeVariant(ctx context.Context, l *layer, home string, below []*layer, lookups uint64) (*variant.Result, error) {
	implied, err := readImplied(home)
	if err == nil {
		err = s.setAside(home)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	dirs := s.dirs(below)
	s.mu.Unlock()
	var open []*os.File
	defer func() {
		for _, f := range open {
			f.Close()
		}
	}()
	for _, dir := range append([]string{home, s.layerDir(l.N)}, dirs...) {
		f, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		open = append(open, f)
	}
	return variant.Make(ctx, variant.Request{
		Home: open[0], Name: stagingDir, Layer: open[1], Below: open[2:], Implied: implied, Lookups: lookups,
	})
}

// setAside moves away what a crash has left of a variant in a layer's directory. It gets a number that Collect does not know,
// and goes with the other leftovers.
func (s *Store) setAside(home string) error {
	staged := filepath.Join(home, stagingDir)
	if _, err := os.Lstat(staged); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	n := s.newDir()
	defer func() {
		s.mu.Lock()
		delete(s.busy, n)
		s.mu.Unlock()
	}()
	return os.Rename(staged, filepath.Join(s.root, "layers", n))
}

// readImplied reads what a layer depends on: it is kept beside the layer only, and not in memory.
func readImplied(dir string) (unpack.Implied, error) {
	rec, err := readLayerRecord(dir)
	if err != nil {
		return nil, err
	}
	if len(rec.ImpliedPaths) == 0 {
		return rec.Implied, nil
	}
	// As the first version wrote it: parents come before what is in them.
	var list unpack.Implied
	var at []string
	for _, dir := range rec.ImpliedPaths {
		names := strings.Split(dir, "/")
		same := 0
		for same < len(names) && same < len(at) && names[same] == at[same] {
			same++
		}
		for ; same < len(names); same++ {
			list = list.Append(unpack.ImpliedDir{Depth: same + 1, Name: names[same], Implied: same == len(names)-1})
		}
		at = names
	}
	return list, nil
}
