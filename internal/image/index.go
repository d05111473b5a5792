package image

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/eventfeed"
	"berth/internal/model"
)

// index is what is known in memory of images and layers, and of the work on them that is under way. mu guards all
// fields, and those of layers that say so. It is held for moments only: never while a disk or a network is waited
// for. Who needs database.commit too takes that first.
type index struct {
	mu     sync.Mutex
	images map[string]*imageRecord
	names  map[string]string // tags and name@digest, to image IDs
	layers map[string]*layer // by key
	jobs   map[jobKey]*job
	// variants has the directories of layers of which a variant is being made, with channels that are closed at the
	// end.
	variants   map[string]chan struct{}
	references map[string][]string // holder to image IDs
	lost       map[string]*lostImage
	next       uint64 // number of the next layer directory
	// busy has directories that are being made or removed, and those that newHome has found in its way: they stay.
	busy map[string]bool
	// doubtful has the directories of layers that were not synced, or being made, when a sync failed. The kernel gives
	// up pages that it could not write, and later syncs succeed: such a layer is never known to be on disk.
	doubtful map[string]bool
	closed   bool
	expiring bool                             // a goroutine waits to remove layers that are adopted: see Store.expireLater
	events   eventfeed.Feed[model.ImageEvent] // of names; announce publishes them
}

func newIndex() *index {
	return &index{
		images: map[string]*imageRecord{}, names: map[string]string{}, layers: map[string]*layer{},
		jobs: map[jobKey]*job{}, variants: map[string]chan struct{}{}, references: map[string][]string{}, next: 1,
		busy: map[string]bool{}, doubtful: map[string]bool{}, lost: map[string]*lostImage{},
	}
}

// layer is a complete layer.
type layer struct {
	layerRecord
	// Guarded by index.mu:
	refs     int  // images and pulls that need it
	recorded bool // in the database
	// adopted says that it is complete and needed by nobody yet: it was found after a crash, or is of a pull that has
	// ended early. since is when that was.
	adopted bool
	since   time.Time
}

// isNothing tells whether an image looks the same without a layer. Many images have several such layers.
func (l *layer) isNothing() bool { return l.Inodes == 0 && !l.OpaqueRoot && !l.OwnRoot }

// lostImage is an image of which Open has found only some of the layers. If a container wants it, the container may run
// with these as lower directories, so they stay for the rest of the boot, with the image's record. The next start of
// berthd finds the record and does the same, until keep-layers says that the image was lost in an earlier boot.
type lostImage struct {
	*imageRecord
	wanted bool // a holder wanted to refer to it. Guarded by index.mu
}

func parseNumber(n string) (uint64, bool) {
	v, err := strconv.ParseUint(n, 36, 64)
	return v, err == nil
}

// take returns a layer with one more reference, which is the caller's; nil: there is none.
func (x *index) take(key string) *layer {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.layers[key]
	if l != nil {
		l.refs++
	}
	return l
}

// replace enters records into the tables in place of those of the same IDs, the last one first, so that a name that is
// in several is that of the first one. It returns the layers that nothing needs any more, for Store.removeLayers: there
// are none if each record needs all that it has needed before. index.mu is held.
func (x *index) replace(records ...*imageRecord) (unused []*layer) {
	var names []string
	for _, r := range records {
		names = slices.Concat(names, r.listed(), x.images[r.ID].listed())
	}
	x.announce(names, func() {
		for _, r := range slices.Backward(records) {
			unused = append(unused, x.put(r)...)
		}
	})
	return unused
}

// put enters a record into the tables in place of the one of the same ID, and counts its layers. It returns those that
// nothing needs any more. It tells nobody: only replace calls it, with index.mu held, and the store while it is being
// opened.
func (x *index) put(r *imageRecord) (unused []*layer) {
	for _, key := range r.needs() {
		x.layers[key].refs++
		x.layers[key].adopted = false
	}
	if old := x.images[r.ID]; old != nil {
		x.forgetNames(old)
		for _, key := range old.needs() {
			unused = append(unused, x.unref(x.layers[key])...)
		}
	}
	x.images[r.ID] = r.held()
	if !r.Removed {
		for _, n := range r.Tags {
			x.names[n] = r.ID
		}
		for _, n := range r.Digests {
			x.names[n] = r.ID
		}
	}
	return unused
}

func (x *index) forgetNames(r *imageRecord) {
	for _, list := range [][]string{r.Tags, r.Digests} {
		for _, n := range list {
			if x.names[n] == r.ID {
				delete(x.names, n)
			}
		}
	}
}

// drop takes a record out of the tables. It returns the layers that nothing needs any more, for Store.removeLayers.
// index.mu is held.
func (x *index) drop(r *imageRecord) []*layer {
	x.announce(r.listed(), func() {
		x.forgetNames(r)
		delete(x.images, r.ID)
	})
	var unused []*layer
	for _, key := range r.needs() {
		unused = append(unused, x.unref(x.layers[key])...)
	}
	return unused
}

// unref gives up one need of a layer. A layer that nothing needs leaves the table at once, so that nobody finds it
// while its directory goes. index.mu is held.
func (x *index) unref(l *layer) []*layer {
	if l.refs--; l.refs > 0 {
		return nil
	}
	delete(x.layers, l.Key)
	x.busy[l.N] = true
	return []*layer{l}
}

// keep gives up the need that a pull has had of a layer. One that nothing else needs stays for the next pull, if it was
// downloaded and no image has ever had it: all else is cheap to make again, or has a record that goes with it. index.mu
// is held.
func (x *index) keep(l *layer, now time.Time) (unused []*layer) {
	if l.refs > 1 || l.recorded || l.Remote != nil || isMade(l.Key) {
		return x.unref(l)
	}
	l.refs, l.adopted, l.since = 0, true, now
	return nil
}

// isMade tells whether the layer of a key is made from others, and not downloaded.
func isMade(key string) bool {
	return strings.HasPrefix(key, chainKey) || strings.HasPrefix(key, filesKey)
}

// find resolves a tag, a repo digest, an ID, the start of an ID, or a short name. index.mu is held.
func (x *index) find(ref string) (*imageRecord, error) {
	notFound := func() error { return fmt.Errorf("image %q: %w", ref, errdefs.ErrNotFound) }
	if ref == "" {
		return nil, fmt.Errorf("an image without a name: %w", errdefs.ErrInvalidArgument)
	}
	if hexID.MatchString(ref) {
		if r := x.images[wholeID(ref)]; r != nil && !r.Removed {
			return r, nil
		}
		return nil, notFound()
	}
	named, err := parseReference(ref)
	if err == nil {
		if id, ok := x.names[named.String()]; ok {
			return x.images[id], nil
		}
	}
	if hexStart.MatchString(ref) {
		start := wholeID(ref)
		var hit *imageRecord
		for id, r := range x.images {
			if r.Removed || !strings.HasPrefix(id, start) {
				continue
			}
			if hit != nil {
				return nil, fmt.Errorf("image %q: more than one ID starts with this: %w", ref, errdefs.ErrInvalidArgument)
			}
			hit = r
		}
		if hit != nil {
			return hit, nil
		}
		return nil, notFound()
	}
	if err != nil {
		return nil, err
	}
	return nil, notFound()
}

// referenced tells whether a holder needs an image. index.mu is held.
func (x *index) referenced(id string) bool {
	for _, ids := range x.references {
		if slices.Contains(ids, id) {
			return true
		}
	}
	return false
}

// knows tells whether a directory is a layer's. index.mu is held.
func (x *index) knows(n string) bool {
	for _, l := range x.layers {
		if l.N == n {
			return true
		}
	}
	return false
}

// pulledFrom tells whether a manifest or a configuration is that of an image that was pulled from a repository, by the
// repository's name in references to images: its mirrors are not named there. Tags do not count, since clients give
// them to images too.
func (x *index) pulledFrom(repository string, document digest.Digest) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	pulled := func(r *imageRecord) bool {
		return r != nil && !r.Removed && slices.ContainsFunc(r.Digests, func(d string) bool {
			return strings.HasPrefix(d, repository+"@")
		})
	}
	if pulled(x.images[document.String()]) {
		return true
	}
	for _, r := range x.images {
		if r.Manifest == document && pulled(r) {
			return true
		}
	}
	return false
}

// ownDocuments are the manifest and the configuration of an image, but for those that another image has too: a document
// may be the manifest of one image and the configuration of another. index.mu is held.
func (x *index) ownDocuments(r *imageRecord) []digest.Digest {
	return slices.DeleteFunc([]digest.Digest{r.Manifest, digest.Digest(r.ID)}, func(document digest.Digest) bool {
		return x.keepsDocument(document, r.ID)
	})
}

// keepsDocument tells whether a manifest or a configuration is that of an image other than the one of this ID. index.mu
// is held.
func (x *index) keepsDocument(document digest.Digest, not string) bool {
	for id, r := range x.images {
		if id != not && (r.Manifest == document || id == document.String()) {
			return true
		}
	}
	for id, r := range x.lost { // whose records stay in the database
		if id != not && (r.Manifest == document || id == document.String()) {
			return true
		}
	}
	return false
}

// doubt puts all layers into doubt that are not known to be on disk. index.mu is held.
func (x *index) doubt() {
	for n := range x.busy {
		x.doubtful[n] = true
	}
	for _, l := range x.layers {
		if l.Boot != "" {
			x.doubtful[l.N] = true
		}
	}
}

func (x *index) image(id string) *imageRecord {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.images[id]
}

// newDir picks the name of a new layer directory, and marks it busy.
func (x *index) newDir() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := strconv.FormatUint(x.next, 36)
	x.next++
	x.busy[n] = true
	return n
}

// release says that a directory is not being made or removed any more.
func (x *index) release(n string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.busy, n)
}
