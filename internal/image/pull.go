package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"berth/internal/disk"
	"berth/internal/image/encryption"
	"berth/internal/image/registry"
	"berth/internal/image/source"
	"berth/internal/liblog"
	"berth/internal/model"
)

// PullRequest asks for an image from its registry.
type PullRequest = model.PullRequest

// maxAnnotations bounds SpecAnnotations, names and values together: what Kubernetes allows an object. An image's record
// is in memory, and in each list of images.
const maxAnnotations = 256 << 10

// PullImage pulls what a client of the CRI asks for.
func (s *Store) PullImage(ctx context.Context, spec model.ImageSpec, auth *model.Auth) (*model.Image, error) {
	return s.Pull(ctx, PullRequest{Ref: spec.Image, Auth: auth, SpecAnnotations: spec.SpecAnnotations})
}

// Pull pulls an image. Layers that the store has are not downloaded again, and for layers that another pull is
// downloading it waits. Manifests and configurations that the store has are read again once from each repository, so
// that only those get an image who can read it there. A pull that fails leaves nothing, but for complete layers if it
// is expected to come again: see obtaining.release.
//
// Errors: errdefs.ErrNotFound (no such image, or none for this platform), ErrUnavailable (the registry is down, slow or
// cut off, after retries), ErrUnauthenticated, ErrPermissionDenied, ErrInvalidArgument (a reference or an image that
// cannot be), ErrFailedPrecondition (content that is not what its digest says, configuration), ErrResourceExhausted
// (the disk is full, or the image is beyond a limit of the configuration, which the text names), and
// *model.UnverifiedError (an image verifier of the node does not accept the image).
func (s *Store) Pull(ctx context.Context, req PullRequest) (*model.Image, error) {
	named, err := parseReference(req.Ref)
	if err != nil {
		return nil, err
	}
	size := 0
	for name, value := range req.SpecAnnotations {
		size += len(name) + len(value)
	}
	if size > maxAnnotations {
		return nil, fmt.Errorf("pull %s: annotations of %d bytes are more than %d: %w", named, size, maxAnnotations,
			errdefs.ErrInvalidArgument)
	}
	start := time.Now()
	ended := s.cfg.Metrics.Pull(reference.Domain(named))
	img, err := s.pull(ctx, named, req)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	ended(err)
	if err != nil {
		return nil, brief(fmt.Errorf("pull %s: %w", named, err))
	}
	s.log.Info("image pulled", "image", named.String(), "image_id", img.ID, "bytes", img.Size,
		"took_ms", liblog.Milliseconds(time.Since(start)))
	return img, nil
}

func (s *Store) pull(ctx context.Context, named reference.Named, req PullRequest) (*model.Image, error) {
	begin, now := time.Now(), s.now.Load()
	repo, err := now.client.Repository(ctx, named, req.Auth)
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	target, err := repo.Resolve(ctx)
	if err != nil {
		return nil, err
	}
	if now.verifiers != nil {
		// All that follows is read by this digest, so that it is what was verified.
		if err := now.verifiers.Verify(ctx, named.String(), target); err != nil {
			return nil, err
		}
	}
	src := &source.Image{
		Registry: reference.Domain(named), Name: named.Name(), Target: target.Digest, Annotations: req.SpecAnnotations,
		Begin: begin,
	}
	if tagged, ok := named.(reference.Tagged); ok {
		src.Tag = named.Name() + ":" + tagged.Tag()
	}
	read := func(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
		// Anybody can have a registry whose tag stands for the digest of somebody else's private image. So documents that
		// the node has are used only for the repositories that they were read from. Layers need no such rule: who cannot
		// read the documents does not know them.
		if s.index.pulledFrom(named.Name(), d.Digest) {
			if data := s.db.cached(d.Digest); data != nil {
				return data, nil
			}
		}
		return repo.Document(ctx, d)
	}
	if err := now.describer.Describe(ctx, src, target, read); err != nil {
		return nil, err
	}
	fetch := func(ctx context.Context, d ocispec.Descriptor, not map[string]bool) (blob, error) {
		return repo.Blob(ctx, d, not)
	}
	return s.obtain(ctx, now, named, src, fetch, req.Progress)
}

// blob is the bytes of a layer. Hosts are those that they came from.
type blob interface {
	Read([]byte) (int, error)
	Close() error
	Hosts() []string
}

// fetcher opens blobs, from hosts other than those in not.
type fetcher func(ctx context.Context, d ocispec.Descriptor, not map[string]bool) (blob, error)

// secrets opens the keys of encrypted layers: also of those that are here, since whoever pulls an image has to be able
// to read it. There is one for each layer, nil if it is not encrypted.
func (s *Store) secrets(ctx context.Context, now *inForce, layers []ocispec.Descriptor) ([]*encryption.Secret, error) {
	i := slices.IndexFunc(layers, source.Encrypted)
	switch {
	case i < 0:
		return make([]*encryption.Secret, len(layers)), nil
	case now.DecryptionKeys == "":
		return nil, fmt.Errorf("layer %s is encrypted, and the node has no keys (image.decryption_keys_path): %w",
			layers[i].Digest, errdefs.ErrFailedPrecondition)
	}
	keys, err := encryption.ReadKeys(now.DecryptionKeys)
	if err != nil {
		return nil, fmt.Errorf("layer %s is encrypted: %w", layers[i].Digest, err)
	}
	return keys.Open(ctx, layers)
}

// record puts an image, or its new names, into the index and the database. The caller holds references to its layers.
// The error is errOtherRemote if the layers have to be unpacked first.
func (s *Store) record(src *source.Image, layers, origins []*layer) (*imageRecord, error) {
	s.db.commit.Lock()
	defer s.db.commit.Unlock()

	s.index.mu.Lock()
	if s.index.keeps(src) { // it was given to the other image while the layers were loaded
		src.Tag = ""
	}
	r := s.index.images[src.ID.String()]
	fresh := r == nil
	switch {
	case !fresh && (r.Artifact != "") != (src.Artifact != nil):
		s.index.mu.Unlock()
		return nil, fmt.Errorf("the configuration of the image is the manifest of an artifact, %s, and the node has the "+
			"other of the two: %w", src.ID, errdefs.ErrInvalidArgument)
	case fresh && src.Artifact != nil:
		r = newArtifactRecord(src, layers)
	case fresh:
		r = newRecord(src, layers, origins)
	}
	before := r.Manifest
	var takeErr error
	r = r.with(func(to *imageRecord) {
		if takeErr = to.takeLayers(src, layers, origins); takeErr == nil {
			describeRecord(src, to)
		}
	})
	if takeErr != nil {
		s.index.mu.Unlock()
		return nil, takeErr
	}
	replaced := r.Manifest != before
	stale := replaced && !s.index.keepsDocument(before, r.ID)
	changed := s.index.takes(r, src.Tag)
	r = changed[0]
	var records []layerRecord
	for _, key := range r.needs() {
		if l := s.index.layers[key]; !l.recorded {
			records = append(records, l.layerRecord)
		}
	}
	s.index.mu.Unlock()

	err := s.db.update(func(tx *bolt.Tx) error {
		for _, l := range records {
			if err := put(tx, bucketLayers, l.Key, l); err != nil {
				return err
			}
		}
		// Documents come before records of images, which putImage takes from them. Also those of an image that is here
		// may be missing: earlier versions removed them with another image that had the same.
		documents := map[digest.Digest][]byte{}
		if src.Artifact == nil { // the configuration of an artifact is a blob
			documents[digest.Digest(r.ID)] = src.RawConfig
		}
		if r.Manifest == src.Manifest.Digest {
			documents[r.Manifest] = src.RawManifest
		}
		blobs := tx.Bucket(bucketBlobs)
		for document, data := range documents {
			if blobs.Get([]byte(document)) != nil {
				continue
			}
			if err := blobs.Put([]byte(document), data); err != nil {
				return err
			}
		}
		for _, c := range changed {
			if err := putImage(tx, c); err != nil {
				return err
			}
		}
		if stale {
			return blobs.Delete([]byte(before))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("record image: %w", disk.Exhausted(err))
	}
	for _, c := range changed {
		s.keepLater(c.ID)
	}
	s.index.mu.Lock()
	for _, key := range r.needs() {
		s.index.layers[key].recorded = true
	}
	s.index.replace(changed...)
	unneeded := s.index.unneeded(r)
	s.index.mu.Unlock()
	if unneeded {
		s.dropLater()
	}
	return r, nil
}

// newRecord is the record of an image that is new, without its names.
func newRecord(src *source.Image, layers, origins []*layer) *imageRecord {
	r := &imageRecord{
		ID: src.ID.String(), Config: src.Image.Config, Platform: src.Image.Platform, Checkpoint: src.Checkpoint,
	}
	r.setManifest(src)
	for _, d := range src.DiffIDs {
		r.DiffIDs = append(r.DiffIDs, d.String())
	}
	r.Layers, r.Origins = keysOf(layers), keysOf(origins)
	return r
}

func keysOf(layers []*layer) (keys []string) {
	for _, l := range layers {
		keys = append(keys, l.Key)
	}
	return keys
}

// describeRecord adds the time, names, annotations and so on of this pull to the record of its image.
func describeRecord(src *source.Image, r *imageRecord) {
	r.Pulled, r.PullTook = time.Now().UTC(), 0
	if !src.Begin.IsZero() {
		r.PullTook = time.Since(src.Begin)
	}
	other := r.Checkpoint != "" || len(r.Blobs) != len(src.Layers) // the manifest is not one of the image as it is
	plain := other && src.Checkpoint == ""
	if r.Removed { // the image comes back, with only the names, annotations and manifest of this pull
		r.Removed, r.Tags, r.Digests, r.SpecAnnotations, r.Pinned = false, nil, nil, nil, false
		r.CheckpointNames, r.CheckpointOf, r.TakenFrom = nil, "", nil
		plain = true
	}
	if plain && src.Artifact == nil {
		r.Checkpoint = src.Checkpoint
		r.setManifest(src)
	}
	if len(src.Annotations) > 0 {
		r.SpecAnnotations = src.Annotations
	}
	if src.Tag != "" {
		r.addName(&r.Tags, src.Tag, src.Checkpoint)
	}
	if src.Name != "" {
		r.addName(&r.Digests, src.Name+"@"+src.Target.String(), src.Checkpoint)
	}
}

// isCorrupt tells whether an error says that content does not have its digest.
func isCorrupt(err error) bool { return errors.Is(err, registry.ErrCorrupt) }
