package image

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// AddReference keeps an image's layers until Release of the same holder, also when the image is removed. A holder may
// refer to several images. References live in memory: after a start of berthd, each container that needs layers has to
// refer to them again before Collect, which removes the layers without a reference. An image that has lost one of its
// layers is NotFound, but Collect keeps the others.
func (s *Store) AddReference(imageID, holder string) (*Layers, error) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	id := wholeID(imageID)
	r := s.index.images[id]
	if r == nil {
		if l := s.index.lost[id]; l != nil {
			l.wanted = true
		}
		return nil, unknownImage(imageID)
	}
	if !slices.Contains(s.index.references[holder], id) {
		s.index.references[holder] = append(s.index.references[holder], id)
	}
	stacked := r.stacked()
	layers := make([]*layer, len(stacked))
	for i, key := range stacked {
		layers[i] = s.index.layers[key]
	}
	return s.layersOf(layers), nil
}

func unknownImage(imageID string) error {
	return fmt.Errorf("image %s: %w", imageID, errdefs.ErrNotFound)
}

// Release ends the references of a holder. What nobody needs then is removed in the background.
func (s *Store) Release(holder string) {
	s.index.mu.Lock()
	ids := s.index.references[holder]
	delete(s.index.references, holder)
	again := slices.ContainsFunc(ids, func(id string) bool { return s.index.unneeded(s.index.images[id]) })
	s.index.mu.Unlock()
	if again {
		s.dropLater()
	}
}

// dropLater is dropUnneeded in the background.
func (s *Store) dropLater() {
	s.start(func() {
		if err := s.dropUnneeded(context.Background()); err != nil {
			s.log.Warn("removed image is still there", "error", err)
		}
	})
}
