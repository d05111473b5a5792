package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/disk"
	"berth/internal/image/source"
	"berth/internal/network/keylock"
	"berth/internal/snapshotter"
	"berth/internal/state"
)

// A layer may be remote: a snapshotter of the node (package snapshotter) mounts it, and reads it from the registry as
// containers ask for it. Nothing of it is downloaded by a pull. It has the directory of a layer here, with a record of
// its snapshot in the place of files. So it is counted, found again after a crash, and removed as any other layer.
// The layers of an image that are remote are its lowest ones: a snapshot has all layers below it.
//
// The snapshots are the snapshotter's, and their record is written before they are made. The directories that
// containers mount come from a view of the highest remote layer. There is one view for all containers: they only read
// from it, and the layer that a container writes to is Berth's own.

const (
	// remoteKey starts the key of a layer that is remote; the snapshotter and snapshotRecord.Ref follow.
	remoteKey = "remote:"
	// snapshotFileName is the record of a snapshot, in the directory of its layer.
	snapshotFileName = "snapshot.json"
	// removalTimeout bounds how long the removal of an image waits for a snapshotter. What it has not done by then is done
	// later.
	removalTimeout = 10 * time.Second
	// The first and the longest time between two attempts to remove what is left.
	removalRetry, removalRetryMax = 5 * time.Second, time.Minute
	// silence is for how long a snapshotter that has not answered is not asked again to remove something.
	silence = 3 * time.Second
)

// Annotations of layers that only nydus-snapshotter understands, and of which the files of an image cannot be unpacked.
var nydusAnnotations = []string{"containerd.io/snapshot/nydus-bootstrap", "containerd.io/snapshot/nydus-blob"}

// Snapshotter is what the store asks of a remote snapshotter: a snapshotter.Client.
type Snapshotter interface {
	Name() string
	Prepare(ctx context.Context, key, parent string, labels map[string]string) (remote bool, err error)
	Find(ctx context.Context, ref, parent string) (name string, err error)
	Dirs(ctx context.Context, view, name string) ([]string, error)
	Remove(ctx context.Context, key string) error
	Cleanup(ctx context.Context) error
}

// snapshotRecord is a layer's snapshot.
type snapshotRecord struct {
	Snapshotter string `json:"snapshotter"`
	// Ref is what the snapshotter is asked for: a chain of the identities of the layer and those below it.
	Ref string `json:"ref"`
	// Key is that of the snapshot while the snapshotter prepares it, and View that of a view of it.
	Key  string `json:"key"`
	View string `json:"view"`
	// Parent and Name are those of the committed snapshot. Name is empty until it is known.
	Parent string `json:"parent,omitempty"`
	Name   string `json:"name,omitempty"`
	Depth  int    `json:"depth"` // how many layers are below it
}

func (r *snapshotRecord) layerKey() string { return remoteKey + r.Snapshotter + ":" + r.Ref }

// remoteLayers are what a Store has for its snapshotter.
type remoteLayers struct {
	// locks has one for each remote layer's key: it is held while the layer's snapshot is made, found and removed.
	locks keylock.Lock

	collecting atomic.Bool // removals are left to removeLater

	mu       sync.Mutex
	pending  map[string]bool // directories whose snapshots are to be removed
	retrying bool
	silent   time.Time // when a removal has last failed because the snapshotter did not answer
}

func isRemote(key string) bool { return strings.HasPrefix(key, remoteKey) }

// prepareRemote returns the lowest layers of an image that the snapshotter has, with references of the caller's. There
// are none if the snapshotter has not even the lowest one, or if the image has to be unpacked as a whole.
func (s *Store) prepareRemote(ctx context.Context, named reference.Named, src *source.Image) ([]*layer, error) {
	if s.cfg.Snapshotter == nil || named == nil || !mayBeRemote(src) {
		return nil, nil
	}
	told := &snapshotter.Image{
		Ref: named.String(), Registry: src.Registry, Manifest: src.Manifest.Digest, Layers: src.Layers,
	}
	snapshots := make([]*snapshotRecord, len(src.Layers))
	var chain digest.Digest // of the identities up to a layer
	for i := range snapshots {
		// Nobody verifies that a remote layer has its diff ID, which an image may claim of any blob, and what images share
		// is read from the registry of the first. So they share the blobs of one registry.
		own := told.Identity(i, src.DiffIDs[i])
		if i == 0 {
			chain = own
		} else {
			chain = identity.ChainID([]digest.Digest{chain, own})
		}
		snapshots[i] = &snapshotRecord{Snapshotter: s.cfg.Snapshotter.Name(), Ref: chain.String(), Depth: i}
	}
	if r := s.index.image(src.ID.String()); r != nil {
		// An image that is here keeps the layers that it has, if they are those of this pull.
		here := 0
		for here < len(r.Layers) && isRemote(r.Layers[here]) {
			if r.Layers[here] != snapshots[here].layerKey() {
				return nil, nil // see takeLayers
			}
			here++
		}
		snapshots = snapshots[:here]
	}
	var layers []*layer
	for i, rec := range snapshots {
		if i > 0 {
			rec.Parent = layers[i-1].Remote.Name
		}
		l, err := s.remoteLayer(ctx, rec, src.DiffIDs[i], told.Labels(i, rec.Ref))
		if err != nil {
			return layers, fmt.Errorf("layer %s: %w", src.Layers[i].Digest, err)
		}
		if l == nil {
			break
		}
		layers = append(layers, l)
	}
	if len(layers) > 0 {
		// What containers could not mount is found out now.
		if _, err := s.remoteDirs(ctx, layers[len(layers)-1].Remote); err != nil {
			return layers, err
		}
	}
	return layers, nil
}

// errOtherRemote is that of a pull with remote layers of an image that is here with others.
var errOtherRemote = errors.New("the image is here with other remote layers")

// takeLayers compares the layers of an image that is here with those of one more pull of it. The ID of an image is the
// digest of its configuration, which anybody can publish with blobs of their own. Unpacked layers are verified by the
// diff IDs in it, and remote ones by nobody. So remote layers are the image's only as long as each pull of it has the
// same ones. Otherwise unpacked layers take their place, for all names of the image: they are right for each name, and
// whoever publishes others cannot keep the image from the node. Remote layers never take the place of unpacked ones.
// The error is errOtherRemote if this pull has remote layers where the image needs unpacked ones.
func (r *imageRecord) takeLayers(src *source.Image, layers, origins []*layer) error {
	theirs := keysOf(layers)
	differ, foreign := false, false
	for i, key := range r.Layers {
		differ = differ || isRemote(key) && theirs[i] != key
		foreign = foreign || isRemote(theirs[i]) && theirs[i] != key
	}
	switch {
	case !differ:
		return nil
	case foreign:
		return errOtherRemote
	}
	replaced := slices.DeleteFunc(r.mounted(), func(key string) bool { return slices.Contains(theirs, key) })
	r.Layers, r.Origins, r.Replaced = theirs, keysOf(origins), replaced
	r.Blobs = nil // those of the other manifest may be anything: see describeRecord
	return nil
}

// mayBeRemote tells whether an image may have remote layers. The files of volumes that an image declares are copied for
// each container, and berthd itself does not read from a file system that may not answer.
func mayBeRemote(src *source.Image) bool {
	return src.Artifact == nil && src.Checkpoint == "" && len(src.Image.Config.Volumes) == 0 &&
		!slices.ContainsFunc(src.Layers, func(l ocispec.Descriptor) bool {
			return source.Encrypted(l) ||
				slices.ContainsFunc(nydusAnnotations, func(a string) bool { return l.Annotations[a] != "" })
		})
}

// remoteLayer returns one remote layer with a reference of the caller's; nil: the snapshotter does not have it.
func (s *Store) remoteLayer(
	ctx context.Context, rec *snapshotRecord, diffID digest.Digest, labels map[string]string,
) (*layer, error) {
	unlock := s.remote.locks.Lock(rec.layerKey())
	if l := s.index.take(rec.layerKey()); l != nil {
		err := s.stillThere(ctx, l.Remote, labels)
		unlock() // removals take it
		if err != nil {
			return nil, errors.Join(err, s.removeLayers(context.Background(), s.unref(l)))
		}
		return l, nil
	}
	n, err := s.newHome(s.dirs.make)
	if err != nil {
		unlock()
		return nil, disk.Exhausted(err)
	}
	l, err := s.newRemoteLayer(ctx, n, rec, diffID, labels)
	unlock()
	switch {
	case errors.Is(err, errNotRemote):
		return nil, s.removeFiles(context.Background(), n)
	case err != nil:
		return nil, errors.Join(err, s.removeDir(context.Background(), n))
	}
	return l, nil
}

// stillThere makes sure that the snapshotter has a snapshot: one that was set up anew has lost what it had.
func (s *Store) stillThere(ctx context.Context, rec *snapshotRecord, labels map[string]string) error {
	name, err := s.cfg.Snapshotter.Find(ctx, rec.Ref, rec.Parent)
	if errdefs.IsNotFound(err) {
		again := *rec
		err = s.prepareSnapshot(ctx, &again, labels)
		name = again.Name
	}
	if err == nil && name != rec.Name {
		return fmt.Errorf("snapshotter %s: the snapshot %s is %s now: remove the image and pull it again: %w",
			rec.Snapshotter, rec.Name, name, errdefs.ErrFailedPrecondition)
	}
	return err
}

// giveBack releases layers of a pull, which are then not there.
func (s *Store) giveBack(layers []*layer) error {
	var unused []*layer
	for i, l := range layers {
		unused = append(unused, s.unref(l)...)
		layers[i] = nil
	}
	return s.removeLayers(context.Background(), unused)
}

// unref gives up a reference.
func (s *Store) unref(l *layer) []*layer {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	return s.index.unref(l)
}

// newRemoteLayer makes a remote layer in its directory, which is new. The error is errNotRemote if the snapshotter does
// not have the layer, and then no snapshot is left.
func (s *Store) newRemoteLayer(
	ctx context.Context, n string, rec *snapshotRecord, diffID digest.Digest, labels map[string]string,
) (*layer, error) {
	dir := s.dirs.home(n)
	if err := os.Mkdir(filepath.Join(dir, layerFS), 0o700); err != nil {
		return nil, disk.Exhausted(err)
	}
	// The names are unique beside those of others that use the snapshotter.
	name := fmt.Sprintf("berth-%s-%s-%d", s.boot, n, time.Now().UnixNano())
	rec.Key, rec.View = name, name+"-view"
	err := rec.write(dir)
	if err == nil {
		err = s.prepareSnapshot(ctx, rec, labels)
	}
	if err == nil {
		err = rec.write(dir)
	}
	if err != nil {
		return nil, err
	}
	file := &layerFile{layerRecord: layerRecord{
		N: n, Key: rec.layerKey(), DiffID: diffID.String(), Boot: s.boot, Remote: rec,
	}}
	if err := s.dirs.writeRecord(n, file); err != nil {
		return nil, disk.Exhausted(err)
	}
	l := &layer{layerRecord: file.layerRecord, refs: 1}
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	delete(s.index.busy, n)
	s.index.layers[l.Key] = l
	return l, nil
}

// errNotRemote is that of a layer which the snapshotter does not have.
var errNotRemote = errors.New("the snapshotter does not have the layer")

// prepareSnapshot has the snapshotter mount a layer, and finds the name of its snapshot.
func (s *Store) prepareSnapshot(ctx context.Context, rec *snapshotRecord, labels map[string]string) error {
	remote, err := s.cfg.Snapshotter.Prepare(ctx, rec.Key, rec.Parent, labels)
	if err != nil {
		return err
	}
	if !remote {
		// What it has prepared instead is a directory to unpack the layer to.
		if err := s.cfg.Snapshotter.Remove(ctx, rec.Key); err != nil {
			return err
		}
		return errNotRemote
	}
	if rec.Name, err = s.cfg.Snapshotter.Find(ctx, rec.Ref, rec.Parent); err != nil {
		return err
	}
	// The snapshot that was prepared has become the one of that name, or is a leftover beside it.
	return s.cfg.Snapshotter.Remove(ctx, rec.Key)
}

func (r *snapshotRecord) write(dir string) error {
	data, err := json.Marshal(r)
	if err == nil {
		data, err = state.Seal(data)
	}
	if err != nil {
		return err
	}
	return disk.Exhausted(disk.WriteFile(filepath.Join(dir, snapshotFileName), data, 0o600))
}

// hasSnapshot tells whether a directory is of a remote layer.
func (d *layerDirs) hasSnapshot(n string) bool {
	_, err := os.Lstat(filepath.Join(d.home(n), snapshotFileName))
	return err == nil
}

func readSnapshot(dir string) (*snapshotRecord, error) {
	path := filepath.Join(dir, snapshotFileName)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rec snapshotRecord
	if err = state.Unseal(path, data); err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &rec, nil
}

// otherSnapshotterError is that of a layer which an earlier configuration has left with another snapshotter.
type otherSnapshotterError struct{ name string }

func (e *otherSnapshotterError) Error() string {
	return fmt.Sprintf("the layer is with the snapshotter %q, and snapshotter.name is another", e.name)
}

func (e *otherSnapshotterError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// remoteDirs are the directories of a remote layer and those below it, top first.
func (s *Store) remoteDirs(ctx context.Context, rec *snapshotRecord) ([]string, error) {
	if s.cfg.Snapshotter == nil || s.cfg.Snapshotter.Name() != rec.Snapshotter {
		return nil, &otherSnapshotterError{rec.Snapshotter}
	}
	dirs, err := s.cfg.Snapshotter.Dirs(ctx, rec.View, rec.Name)
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("the snapshotter has lost layers of the image, which must be pulled again: %w: %w", err,
			errdefs.ErrFailedPrecondition)
	}
	return dirs, err
}

// remoteStack returns the directories of an image with remote layers for overlayfs, top first: its own layers' above
// those that the snapshotter says.
func (s *Store) remoteStack(ctx context.Context, own []string, opaque bool, top *snapshotRecord) ([]string, error) {
	dirs, err := s.remoteDirs(ctx, top)
	if err != nil || opaque {
		return own, err
	}
	return append(slices.Clip(own), dirs...), nil
}

// layersOf are the directories of an image's layers, which come base first. The caller holds index.mu.
func (s *Store) layersOf(layers []*layer) *Layers {
	split := 0
	for split < len(layers) && layers[split].Remote != nil {
		split++
	}
	if split == 0 {
		return &Layers{Dirs: s.dirs.stack(layers)}
	}
	own, top := layers[split:], layers[split-1].Remote
	opaque := slices.ContainsFunc(own, func(l *layer) bool { return l.OpaqueRoot })
	var dirs []string
	if slices.ContainsFunc(own, func(l *layer) bool { return !l.isNothing() }) {
		dirs = s.dirs.stack(own)
	}
	return &Layers{Remote: func(ctx context.Context) ([]string, error) { return s.remoteStack(ctx, dirs, opaque, top) }}
}

// removeSnapshot removes the snapshot of a layer's directory, and its view. Without one, it does nothing. A snapshotter
// that does not answer is waited for once, however many snapshots are to be removed.
func (s *Store) removeSnapshot(ctx context.Context, n string) error {
	rec, err := readSnapshot(s.dirs.home(n))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		s.log.Warn("the record of a remote layer is spoilt: its snapshot may be left", "layer", n, "error", err)
		return nil
	}
	client := s.cfg.Snapshotter
	if client == nil || client.Name() != rec.Snapshotter {
		return &otherSnapshotterError{rec.Snapshotter}
	}
	s.remote.mu.Lock()
	silent := time.Since(s.remote.silent) < silence
	s.remote.mu.Unlock()
	if silent {
		return fmt.Errorf("snapshotter %s has not answered: %w", rec.Snapshotter, errdefs.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, removalTimeout)
	defer cancel()
	err = s.removeRecorded(ctx, rec)
	if ctx.Err() != nil || errdefs.IsUnavailable(err) {
		s.remote.mu.Lock()
		s.remote.silent = time.Now()
		s.remote.mu.Unlock()
	}
	return err
}

func (s *Store) removeRecorded(ctx context.Context, rec *snapshotRecord) (err error) {
	client := s.cfg.Snapshotter
	defer s.remote.locks.Lock(rec.layerKey())()
	for _, key := range []string{rec.View, rec.Key} {
		if err := client.Remove(ctx, key); err != nil {
			return err
		}
	}
	s.index.mu.Lock()
	needed := s.index.layers[rec.layerKey()] != nil // another directory is of the same snapshot
	s.index.mu.Unlock()
	if needed {
		return nil
	}
	if rec.Name == "" {
		rec.Name, err = client.Find(ctx, rec.Ref, rec.Parent)
		if errdefs.IsNotFound(err) {
			return client.Cleanup(ctx)
		}
		if err != nil {
			return err
		}
	}
	if err := client.Remove(ctx, rec.Name); err != nil {
		return err
	}
	return client.Cleanup(ctx)
}

// byDepth puts layers in the order in which they can be removed: a snapshot that has others above it cannot.
func byDepth(layers []*layer) []*layer {
	depth := func(l *layer) int {
		if l.Remote == nil {
			return 0
		}
		return l.Remote.Depth
	}
	return slices.SortedStableFunc(slices.Values(layers), func(a, b *layer) int { return cmp.Compare(depth(b), depth(a)) })
}

// removeLater removes a directory in the background, again and again until its snapshot can be removed. The directory
// stays busy meanwhile.
func (s *Store) removeLater(n string) {
	s.remote.mu.Lock()
	defer s.remote.mu.Unlock()
	if s.remote.pending == nil {
		s.remote.pending = map[string]bool{}
	}
	s.remote.pending[n] = true
	if !s.remote.retrying {
		s.remote.retrying = s.start(s.removePending)
	}
}

func (s *Store) removePending() {
	for wait := time.Duration(0); ; wait = min(max(2*wait, removalRetry), removalRetryMax) {
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(wait):
		}
		s.remote.mu.Lock()
		var dirs []string
		for n := range s.remote.pending {
			dirs = append(dirs, n)
		}
		s.remote.mu.Unlock()
		// Those above were made later, and have higher numbers.
		slices.SortFunc(dirs, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(b, a)) })
		for _, n := range dirs {
			err := s.dirs.within(n)
			if err == nil {
				err = s.removeSnapshot(s.ctx, n)
			}
			if err == nil {
				err = s.removeFiles(context.Background(), n)
			}
			if err != nil {
				s.log.Warn("a remote layer is not removed yet", "layer", n, "error", err)
				if errdefs.IsUnavailable(err) {
					break
				}
				continue
			}
			s.remote.mu.Lock()
			delete(s.remote.pending, n)
			s.remote.mu.Unlock()
		}
		s.remote.mu.Lock()
		if s.remote.retrying = len(s.remote.pending) > 0; !s.remote.retrying {
			s.remote.mu.Unlock()
			return
		}
		s.remote.mu.Unlock()
	}
}
