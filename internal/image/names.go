package image

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	bolt "go.etcd.io/bbolt"

	"berth/internal/disk"
	"berth/internal/image/source"
)

// Tag gives an image one more name, which it returns in full. Another image that has the name loses it, as with a pull.
// A name with a digest is errdefs.ErrInvalidArgument: what an image's digest is, its registry says.
func (s *Store) Tag(_ context.Context, refOrID, name string) (string, error) {
	_, tag, err := tagOf(name, "given to")
	if err != nil {
		return "", err
	}
	add := func(r *imageRecord) { r.addName(&r.Tags, tag, r.checkpoint(refOrID)) }
	if err := s.change(refOrID, tag, add); err != nil {
		return "", fmt.Errorf("tag image %s: %w", refOrID, disk.Exhausted(err))
	}
	return tag, nil
}

// Untag takes a name away from an image that has others, and returns it in full. Its digests in that repository go with
// the last tag there. The only tag of an image is errdefs.ErrFailedPrecondition, as an image that nobody can name any
// more is removed, and a name with a digest errdefs.ErrInvalidArgument.
func (s *Store) Untag(_ context.Context, name string) (string, error) {
	repository, tag, err := tagOf(name, "taken away from")
	if err != nil {
		return "", err
	}
	only := false
	take := func(r *imageRecord) {
		if only = len(r.Tags) == 1; only {
			return
		}
		r.dropName(&r.Tags, tag)
		if slices.ContainsFunc(r.Tags, func(t string) bool { return strings.HasPrefix(t, repository+":") }) {
			return
		}
		for _, digest := range slices.Clone(r.Digests) {
			if strings.HasPrefix(digest, repository+"@") {
				r.dropName(&r.Digests, digest)
			}
		}
	}
	if err := s.change(tag, "", take); err != nil {
		return "", fmt.Errorf("untag image %s: %w", name, disk.Exhausted(err))
	}
	if only {
		return "", fmt.Errorf("image %s: it is the only tag of the image: %w", name, errdefs.ErrFailedPrecondition)
	}
	return tag, nil
}

// tagOf is a name with a tag in full, and its repository. act is what one with a digest cannot be.
func tagOf(name, act string) (repository, tag string, err error) {
	named, err := parseReference(name)
	if err != nil {
		return "", "", err
	}
	tagged, ok := named.(reference.NamedTagged)
	if !ok {
		return "", "", fmt.Errorf("image %q: a name with a digest cannot be %s an image: %w", name, act,
			errdefs.ErrInvalidArgument)
	}
	return tagged.Name(), tagged.Name() + ":" + tagged.Tag(), nil
}

// Pin says whether clients that free disk space should spare an image. One that the configuration pins stays pinned.
func (s *Store) Pin(_ context.Context, refOrID string, pinned bool) error {
	if err := s.change(refOrID, "", func(r *imageRecord) { r.Pinned = pinned }); err != nil {
		return fmt.Errorf("pin image %s: %w", refOrID, disk.Exhausted(err))
	}
	return nil
}

// change makes a change to the record of an image, which gets the tag; empty: none that others may have.
func (s *Store) change(refOrID, tag string, edit func(*imageRecord)) error {
	s.db.commit.Lock()
	defer s.db.commit.Unlock()
	s.index.mu.Lock()
	r, err := s.index.find(refOrID)
	if err != nil {
		s.index.mu.Unlock()
		return err
	}
	changed := s.index.takes(r.with(edit), tag)
	s.index.mu.Unlock()
	err = s.db.update(func(tx *bolt.Tx) error {
		for _, c := range changed {
			if err := putImage(tx, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.index.mu.Lock()
	s.index.replace(changed...)
	s.index.mu.Unlock()
	for _, c := range changed {
		s.keepLater(c.ID)
	}
	return nil
}

// keepsTag tells whether the tag of an image that is being loaded stays with another image, which has it.
func (x *index) keepsTag(src *source.Image) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.keeps(src)
}

// keeps is keepsTag where index.mu is held.
func (x *index) keeps(src *source.Image) bool {
	id, ok := x.names[src.Tag]
	return ok && src.Keeps != nil && id != src.ID.String() && src.Keeps(src.Tag, id)
}
