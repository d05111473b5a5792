package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"berth/internal/disk"
	"berth/internal/image/source"
	"berth/internal/image/unpack"
	"berth/internal/model"
	"berth/internal/state"
)

// imageRecord is an image as it is kept. A record in memory is never written to: a change replaces it.
type imageRecord struct {
	ID       string        `json:"id"`
	Tags     []string      `json:"tags,omitempty"`
	Digests  []string      `json:"digests,omitempty"` // name@sha256:…
	Manifest digest.Digest `json:"manifest"`
	Size     uint64        `json:"size"`
	Layers   []string      `json:"layers"` // keys of layers, base first
	// Origins are keys of the layers that variants among Layers were made from, where the tars of these can be made again.
	Origins []string `json:"origins,omitempty"`
	// Replaced are keys of remote layers that unpacked ones have replaced among Layers. Containers of before run on them:
	// they stay until no holder refers to the image.
	Replaced []string            `json:"replaced,omitempty"`
	DiffIDs  []string            `json:"diffIDs"` // base first
	Config   ocispec.ImageConfig `json:"config"`
	Platform ocispec.Platform    `json:"platform"`
	Pulled   time.Time           `json:"pulled"`
	PullTook time.Duration       `json:"pullTook,omitempty"` // 0: it was loaded, or pulled by an earlier version
	Removed  bool                `json:"removed,omitempty"`  // by a client; containers still need the layers
	Pinned   bool                `json:"pinned,omitempty"`   // by Pin
	// Artifact is the type of an artifact, whose ID is the digest of its manifest, and whose Layers are the tree of its
	// files and its blobs: see artifact.go. Empty: an image.
	Artifact string `json:"artifact,omitempty"`
	// Checkpoint is the container that the image is a checkpoint of. It is that of the annotations that came with
	// Manifest, and empty as soon as a pull has brought the image without such an annotation: anybody can publish a
	// manifest, with any annotation, that has the configuration of somebody else's image.
	Checkpoint string `json:"checkpoint,omitempty"`
	// CheckpointNames are those of Tags and Digests by which the image was pulled as a checkpoint, sorted. A registry
	// decides how many there are, so the container is kept once: CheckpointOf is that of the last such pull.
	CheckpointNames []string `json:"checkpointNames,omitempty"`
	CheckpointOf    string   `json:"checkpointOf,omitempty"`
	// OldCheckpoints is what earlier versions kept in place of the two: a container for each name. See current.
	OldCheckpoints map[string]string `json:"checkpoints,omitempty"`
	// Blobs are those of the layers in the registry, base first; see artifact.go.
	Blobs []ocispec.Descriptor `json:"blobs,omitempty"`
	// SpecAnnotations are those of the last pull that brought some.
	SpecAnnotations map[string]string `json:"specAnnotations,omitempty"`
	// TakenFrom are the images that had tags of this one before, oldest first, by tag. It is kept as long as a failure of
	// power would lose this image, and the tag with it: see returnTags.
	TakenFrom map[string][]formerHolder `json:"takenFrom,omitempty"`

	// partial: Config has been left out, but for the user. On disk it is always whole: see database.whole.
	partial bool
}

const (
	// heldConfig is how many bytes of an image's configuration are in memory. Few have more, and one may have
	// max_config_text, which hundreds of images would not have to themselves.
	heldConfig = 16 << 10
	// heldUser is more than the name of a user and a group has that a container can be started as.
	heldUser = 1 << 10
)

// held is the record as it is in memory.
func (r *imageRecord) held() *imageRecord {
	if r.partial || source.ConfigText(&r.Config) <= heldConfig {
		return r
	}
	return r.with(func(c *imageRecord) {
		c.partial, c.Config = true, ocispec.ImageConfig{}
		if len(r.Config.User) <= heldUser {
			c.Config.User = strings.Clone(r.Config.User)
		}
	})
}

// whole is a record with all of the configuration, which is in the document that was pulled.
func (r *imageRecord) whole(document []byte) (*imageRecord, error) {
	if !r.partial {
		return r, nil
	}
	if document == nil {
		return nil, fmt.Errorf("configuration of image %s: %w", r.ID, errdefs.ErrNotFound)
	}
	var img ocispec.Image
	if err := json.Unmarshal(document, &img); err != nil {
		return nil, fmt.Errorf("configuration of image %s: %w", r.ID, err)
	}
	return r.with(func(c *imageRecord) { c.partial, c.Config = false, img.Config }), nil
}

// layerRecord is a layer's directory as it is kept.
type layerRecord struct {
	N      string `json:"n"`   // its name under layers/
	Key    string `json:"key"` // the diff ID, or chain:<chain ID> for a variant; of an artifact blob:… or files:…
	DiffID string `json:"diffID"`
	Bytes  uint64 `json:"bytes"`
	Inodes uint64 `json:"inodes"`
	// Entries and Length are what unpacking has cost; see unpack.Result. Records of the first version have none.
	Entries    uint64 `json:"entries,omitempty"`
	Length     uint64 `json:"length,omitempty"`
	OpaqueRoot bool   `json:"opaqueRoot,omitempty"`
	// OwnRoot: the layer says how the root directory looks. Earlier versions did not keep this: see Store.takesRoot.
	OwnRoot bool `json:"ownRoot,omitempty"`
	// Depends: how the layer's directories look depends on the layers below. Which, is in the layerFile.
	Depends bool `json:"depends,omitempty"`
	// Boot is the boot of the machine in which the directory was written, until it is known to be on disk.
	Boot string `json:"boot,omitempty"`
	// Remote is the snapshot of a remote layer; nil: the layer's files are in its directory.
	Remote *snapshotRecord `json:"remote,omitempty"`
}

// Names in the directory of a layer.
const (
	layerFS       = "fs"
	layerFileName = "layer.json"
)

// layerFile is layer.json, beside a layer's directory.
type layerFile struct {
	layerRecord
	Implied unpack.Implied `json:"impliedDirs,omitempty"`
	// ImpliedPaths is what the first version kept in place of Implied: whole paths.
	ImpliedPaths []string `json:"implied,omitempty"`
}

var (
	bucketImages = []byte("images")
	bucketLayers = []byte("layers")
	bucketBlobs  = []byte("blobs") // manifests and configurations, by digest
)

// with returns a copy that a change was made to.
func (r *imageRecord) with(change func(*imageRecord)) *imageRecord {
	c := *r
	c.Tags, c.Digests, c.CheckpointNames = slices.Clone(r.Tags), slices.Clone(r.Digests), slices.Clone(r.CheckpointNames)
	c.TakenFrom = maps.Clone(r.TakenFrom)
	change(&c)
	return &c
}

// setManifest says by which manifest the record of an image is. The layers stay: unpacked ones are those of the
// configuration, and takeLayers has seen to the remote ones.
func (r *imageRecord) setManifest(src *source.Image) {
	r.Manifest, r.Blobs = src.Manifest.Digest, nil
	r.Size = uint64(len(src.RawManifest)) + uint64(len(src.RawConfig))
	for _, d := range src.Layers {
		// Annotations, URLs and data of a descriptor may have megabytes, and the record is in memory.
		r.Blobs = append(r.Blobs, ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size})
		r.Size += uint64(d.Size)
	}
}

// addName adds a name by which the image was pulled. If it was not pulled as a checkpoint by this name, checkpoint is
// empty.
func (r *imageRecord) addName(list *[]string, name, checkpoint string) {
	*list = insert(*list, name)
	if checkpoint == "" {
		r.dropCheckpoint(name)
	} else {
		r.CheckpointNames, r.CheckpointOf = insert(r.CheckpointNames, name), checkpoint
	}
}

// dropName takes a name away, from Tags or Digests.
func (r *imageRecord) dropName(list *[]string, name string) {
	*list = slices.DeleteFunc(*list, func(n string) bool { return n == name })
	r.dropCheckpoint(name)
	r.forgetHolders(name)
}

// dropCheckpoint says that the image is no checkpoint by a name.
func (r *imageRecord) dropCheckpoint(name string) {
	if i, found := slices.BinarySearch(r.CheckpointNames, name); found {
		r.CheckpointNames = slices.Delete(r.CheckpointNames, i, i+1)
	}
	if len(r.CheckpointNames) == 0 {
		r.CheckpointNames, r.CheckpointOf = nil, ""
	}
}

// checkpoint is the container that the image is a checkpoint of, for whoever asks for it by this reference; empty: it
// is none. An ID does not say which of the image's names is meant: by its ID, the image is a checkpoint if every pull
// has brought it as one.
func (r *imageRecord) checkpoint(ref string) string {
	if named, err := parseReference(ref); err == nil {
		name := named.String()
		if slices.Contains(r.Tags, name) || slices.Contains(r.Digests, name) {
			if _, found := slices.BinarySearch(r.CheckpointNames, name); found {
				return r.CheckpointOf
			}
			return ""
		}
	}
	return r.Checkpoint
}

// current is the record as this version has it. Earlier versions kept a container for each name by which an image was
// pulled as a checkpoint. The first ones did not keep by which name it was: it is one by all of them, until a pull says
// otherwise.
func (r *imageRecord) current() *imageRecord {
	old := r.OldCheckpoints
	if r.CheckpointNames == nil && old == nil && r.Checkpoint != "" {
		old = map[string]string{}
		for _, name := range slices.Concat(r.Tags, r.Digests) {
			old[name] = r.Checkpoint
		}
	}
	if len(old) == 0 {
		return r
	}
	return r.with(func(c *imageRecord) {
		c.OldCheckpoints, c.CheckpointNames = nil, slices.Sorted(maps.Keys(old))
		c.CheckpointOf = old[c.CheckpointNames[0]]
	})
}

// needs are the keys of all layers that the image keeps.
func (r *imageRecord) needs() []string { return slices.Concat(r.Layers, r.Origins, r.Replaced) }

// mounted are the keys of the layers that containers may have mounted.
func (r *imageRecord) mounted() []string { return slices.Concat(r.Layers, r.Replaced) }

func (r *imageRecord) model(pinned []string) *model.Image {
	m := &model.Image{
		ID: r.ID, Manifest: string(r.Manifest), RepoTags: r.Tags, RepoDigests: r.Digests, Size: r.Size,
		Config: r.Config, Platform: r.Platform, Layers: r.DiffIDs, Checkpoint: r.Checkpoint, Pinned: r.Pinned,
		SpecAnnotations: r.SpecAnnotations, Pulled: r.Pulled, PullTook: r.PullTook, Partial: r.partial, Artifact: r.Artifact,
	}
	for _, p := range pinned {
		hit := func(name string) bool { return matchPattern(p, name) }
		if slices.ContainsFunc(r.Tags, hit) || slices.ContainsFunc(r.Digests, hit) {
			m.Pinned = true
		}
	}
	return m
}

func insert(sorted []string, s string) []string {
	i, found := slices.BinarySearch(sorted, s)
	if found {
		return sorted
	}
	return slices.Insert(sorted, i, s)
}

func openRecords(path string) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%s is in use by another process: %w", path, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, disk.Exhausted(err))
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, b := range [][]byte{bucketImages, bucketLayers, bucketBlobs} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("open %s: %w", path, disk.Exhausted(err))
	}
	return db, nil
}

func put(tx *bolt.Tx, bucket []byte, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if data, err = state.Seal(data); err != nil {
		return err
	}
	return tx.Bucket(bucket).Put([]byte(key), data)
}

// putImage writes the record of an image, whose documents are in the database if it is partial.
func putImage(tx *bolt.Tx, r *imageRecord) error {
	whole, err := r.whole(tx.Bucket(bucketBlobs).Get([]byte(r.ID)))
	if err != nil {
		return err
	}
	return put(tx, bucketImages, r.ID, whole)
}

// load fills the store's tables from what is on disk. What is not believed is left out, and collected later. A layer
// whose directory cannot be looked at is an error: it may be a lower directory of containers that run.
func (s *Store) load() error {
	unsynced := map[string]bool{} // keys of layers that an earlier boot has not synced
	var lost []*imageRecord       // with such a layer
	err := s.db.view(func(tx *bolt.Tx) error {
		err := tx.Bucket(bucketLayers).ForEach(func(k, v []byte) error {
			var f layerFile
			err := json.Unmarshal(v, &f)
			r := f.current()
			if err != nil {
				s.log.Warn("layer record does not parse", "layer", string(k), "error", err)
				return nil
			}
			if r.Boot != "" && r.Boot != s.boot {
				s.log.Warn("layer was lost", "layer", r.Key)
				unsynced[r.Key] = true
				return nil
			}
			if _, err := os.Lstat(s.dirs.fs(r.N)); errors.Is(err, os.ErrNotExist) {
				s.log.Warn("layer was lost", "layer", r.Key)
				return nil
			} else if err != nil {
				return fmt.Errorf("layer %s: %w", r.Key, err)
			}
			s.index.layers[r.Key] = &layer{layerRecord: r, recorded: true}
			s.index.doubtful[r.N] = r.Boot != "" && s.dirs.isDoubtful(r.N)
			return nil
		})
		if err != nil {
			return err
		}
		return tx.Bucket(bucketImages).ForEach(func(k, v []byte) error {
			var r imageRecord
			if err := json.Unmarshal(v, &r); err != nil {
				s.log.Warn("image record does not parse", "image_id", string(k), "error", err)
				return nil
			}
			for _, key := range r.Layers {
				if s.index.layers[key] == nil {
					s.log.Warn("image was lost: it must be pulled again", "image_id", r.ID, "layer", key)
					if slices.ContainsFunc(r.Layers, func(key string) bool { return unsynced[key] }) {
						lost = append(lost, &r)
					} else {
						s.hold(&r)
					}
					return nil
				}
			}
			gone := func(key string) bool { return s.index.layers[key] == nil }
			r.Origins, r.Replaced = slices.DeleteFunc(r.Origins, gone), slices.DeleteFunc(r.Replaced, gone)
			if !s.index.unsyncedImage(&r) { // it is still noted if an earlier version has synced the image
				r.TakenFrom = nil
			}
			s.index.put(r.current())
			return nil
		})
	})
	if err != nil {
		return err
	}
	s.returnTags(lost)
	return s.adopt()
}

// hold keeps the layers that a lost image still has, and its record, until Collect: see lostImage.
func (s *Store) hold(r *imageRecord) {
	// The file of an image goes before the directories of its layers: such an image was being removed.
	if _, err := os.Lstat(s.db.files.Path(imageFileID(r.ID))); errors.Is(err, os.ErrNotExist) {
		return
	}
	// It was lost in an earlier boot, and no container of this one has its layers mounted.
	if boot, err := s.db.keepsFor(); err == nil && boot != "" && boot != s.boot {
		return
	}
	s.index.lost[r.ID] = &lostImage{imageRecord: r}
	for _, key := range r.mounted() {
		if l := s.index.layers[key]; l != nil {
			l.refs++
		}
	}
}

// adopt takes in layers that were complete when the process died in the middle of a pull, or that a pull which ended
// early had left: the next pull needs them.
func (s *Store) adopt() error {
	entries, err := os.ReadDir(s.dirs.root)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, l := range s.index.layers {
		known[l.N] = true
	}
	for _, e := range entries {
		n := e.Name()
		if v, ok := parseNumber(n); ok && v >= s.index.next {
			s.index.next = v + 1
		}
		if known[n] || n == emptyLayer {
			continue
		}
		f, err := readLayerRecord(s.dirs.home(n))
		if err != nil {
			continue
		}
		r := f.current()
		if r.N != n || r.Boot != s.boot || s.index.layers[r.Key] != nil {
			continue
		}
		if isMade(r.Key) {
			continue // cheap to make again
		}
		if _, err := os.Lstat(s.dirs.fs(n)); errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("layer %s: %w", r.Key, err)
		}
		s.index.layers[r.Key] = &layer{layerRecord: r, adopted: true, since: time.Now()}
		s.index.doubtful[n] = s.dirs.isDoubtful(n)
	}
	for _, l := range s.index.layers {
		if l.Depends || !l.OwnRoot {
			if err := s.setAside(s.dirs.home(l.N)); err != nil {
				s.log.Warn("leftover of a variant is still there", "layer", l.N, "error", err)
			}
		}
	}
	return nil
}

// current is the record as this version has it.
func (f *layerFile) current() layerRecord {
	r := f.layerRecord
	r.Depends = r.Depends || len(f.ImpliedPaths) > 0
	return r
}

// writeLayerRecord marks a directory as complete.
func writeLayerRecord(dir string, rec *layerFile) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if data, err = state.Seal(data); err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(dir, layerFileName), data, 0o600)
}

func readLayerRecord(dir string) (*layerFile, error) {
	data, err := os.ReadFile(filepath.Join(dir, layerFileName))
	if err != nil {
		return nil, err
	}
	var rec layerFile
	err = state.Unseal(filepath.Join(dir, layerFileName), data)
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err != nil {
		return nil, fmt.Errorf("%s/layer.json: %w", dir, err)
	}
	return &rec, nil
}

// bootID tells one boot of the machine from another (proc_sys_kernel(5)).
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
