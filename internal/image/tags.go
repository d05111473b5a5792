package image

import (
	"slices"

	bolt "go.etcd.io/bbolt"
)

// A tag moves from one image to another in one transaction, which is on the disk when a pull returns, and the layers of
// the other image are there only after the next sync. A failure of power before that loses the other image. So the
// record of an image that is not synced says which images its tags were taken from, and the next boot gives the tags
// back: a node without its registry can run the older image then, and nobody takes it for one that nothing needs.

// formerHolder is an image that had a tag before another one took it.
type formerHolder struct {
	ID         string `json:"id"`
	Checkpoint string `json:"checkpoint,omitempty"` // the container that it was a checkpoint of by this tag; empty: none
}

// forgetHolders says that the image has a tag for good, or has lost it: the tag is not given back to those images that
// had it before.
func (r *imageRecord) forgetHolders(tag string) {
	if delete(r.TakenFrom, tag); len(r.TakenFrom) == 0 {
		r.TakenFrom = nil
	}
}

// takes are the records that change if an image has a new tag: its own, and, without the tag, that of another image
// that has it, which stays by its digest. r is the record with the tag, not yet in the index, and nobody else's.
// index.mu is held.
func (x *index) takes(r *imageRecord, tag string) []*imageRecord {
	id, ok := x.names[tag]
	if !ok || id == r.ID {
		return []*imageRecord{r}
	}
	from := x.images[id]
	if x.unsyncedImage(r) {
		var former []formerHolder
		for _, f := range from.TakenFrom[tag] {
			if f.ID != r.ID {
				former = append(former, f)
			}
		}
		last := formerHolder{ID: id}
		if _, found := slices.BinarySearch(from.CheckpointNames, tag); found {
			last.Checkpoint = from.CheckpointOf
		}
		if r.TakenFrom == nil {
			r.TakenFrom = map[string][]formerHolder{}
		}
		r.TakenFrom[tag] = append(former, last)
	}
	return []*imageRecord{r, from.with(func(c *imageRecord) { c.dropName(&c.Tags, tag) })}
}

// unsyncedImage tells whether a failure of power would lose an image. index.mu is held.
func (x *index) unsyncedImage(r *imageRecord) bool {
	return slices.ContainsFunc(r.Layers, func(key string) bool { return x.layers[key].Boot != "" })
}

// synced are the records that change when some layers are known to be on disk: the images of which all layers are, and
// that have taken tags, keep these from now on. index.mu is held.
func (x *index) synced(layers []*layer) (records []*imageRecord) {
	for _, r := range x.images {
		left := func(key string) bool {
			l := x.layers[key]
			return l.Boot != "" && !slices.Contains(layers, l)
		}
		if r.TakenFrom != nil && !slices.ContainsFunc(r.Layers, left) {
			records = append(records, r.with(func(c *imageRecord) { c.TakenFrom = nil }))
		}
	}
	return records
}

// returnTags gives the tags of images that a failure of power has lost to the images that had them before. It is called
// while the store is being opened.
func (s *Store) returnTags(lost []*imageRecord) {
	given := givenBack(lost, s.index.images)
	if len(given) == 0 {
		return
	}
	for _, r := range given {
		s.index.put(r)
	}
	err := s.db.update(func(tx *bolt.Tx) error {
		for _, r := range given {
			if err := putImage(tx, r); err != nil {
				return err
			}
		}
		for _, r := range lost {
			// Where this start ends before Collect, the next one finds the record again, and the tag may be gone by then.
			if r.TakenFrom == nil {
				continue
			}
			if err := put(tx, bucketImages, r.ID, r.with(func(c *imageRecord) { c.TakenFrom = nil })); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.log.Warn("tags of lost images are given back in memory only, and at the next start again", "error", err)
	}
}

// givenBack are the records of images that get tags of lost images back, with these.
func givenBack(lost []*imageRecord, images map[string]*imageRecord) map[string]*imageRecord {
	given, taken := map[string]*imageRecord{}, map[string]bool{}
	for _, r := range images {
		for _, tag := range r.listed() {
			taken[tag] = true
		}
	}
	for _, r := range lost {
		if r.Removed { // with its tags
			continue
		}
		for tag, former := range r.TakenFrom {
			for _, f := range slices.Backward(former) {
				to := images[f.ID]
				if g := given[f.ID]; g != nil {
					to = g
				}
				if to == nil || to.Removed {
					continue
				}
				if !taken[tag] {
					taken[tag] = true
					given[f.ID] = to.with(func(c *imageRecord) { c.addName(&c.Tags, tag, f.Checkpoint) })
				}
				break
			}
		}
	}
	return given
}
