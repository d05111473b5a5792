package source

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is an image, or an artifact, as a registry or an archive describes it. A Describer fills in what the manifests
// and the configuration say; the names are its caller's.
type Image struct {
	Registry    string    // from which it comes; empty: an archive
	Begin       time.Time // of the pull; zero: it is none
	Name        string    // to be recorded beside target's digest; empty: none
	Tag         string    // to be recorded; empty: none
	Target      digest.Digest
	Manifest    ocispec.Descriptor
	Layers      []ocispec.Descriptor
	DiffIDs     []digest.Digest
	ID          digest.Digest
	Image       ocispec.Image
	RawConfig   []byte
	RawManifest []byte
	// Artifact is what it is if it is no image; nil: an image. The ID of an artifact is the digest of its manifest, since
	// many share one configuration. DiffIDs are then the digests of the layers; Image and RawConfig are empty.
	Artifact *Artifact
	// Checkpoint is what annotations name as the container that the image is a checkpoint of.
	Checkpoint string
	// Annotations are those of the client that pulls, to be recorded.
	Annotations map[string]string
	// Keeps tells whether a tag stays with the image of this ID, which has it; nil: tags move to the image.
	Keeps func(tag, id string) bool
}

// checkpointAnnotations are those by which tools mark an image as a checkpoint.
var checkpointAnnotations = []string{metadata.CheckpointAnnotationName,
	"io.kubernetes.cri-o.annotations.checkpoint.name"}

// Describer finds out what an image is made of, from its manifests and its configuration. It has no state.
type Describer struct {
	Limits   *Limits
	Platform string // for which an image is wanted, as errors name it

	match platforms.MatchComparer
}

// NewDescriber takes the name of a platform, os/architecture[/variant]; empty: this machine's.
func NewDescriber(platform string, limits *Limits) (*Describer, error) {
	if platform == "" {
		return &Describer{Limits: limits, Platform: platforms.DefaultString(), match: platforms.Default()}, nil
	}
	p, err := platforms.Parse(platform)
	if err != nil {
		return nil, err
	}
	return &Describer{Limits: limits, Platform: platform, match: platforms.Only(p)}, nil
}

// maxCheckpoint is how long the name of a container may be that an image is a checkpoint of: it is kept in memory.
const maxCheckpoint = 4 << 10

// maxUntold is how many entries without a platform are looked into for one image: each takes two requests.
const maxUntold = 32

// attestation is the annotation of an entry which says something of another entry, such as how that was built.
const attestation = "vnd.docker.reference.type"

// Describe reads manifests down to the one for this platform, and the configuration of an image.
func (d *Describer) Describe(ctx context.Context, src *Image, target ocispec.Descriptor,
	read func(context.Context, ocispec.Descriptor) ([]byte, error)) error {

	s := &search{Describer: d, read: read}
	return s.describe(ctx, src, target, 0, false)
}

// search is the way through the indexes of one image.
type search struct {
	*Describer
	read   func(context.Context, ocispec.Descriptor) ([]byte, error)
	untold int // entries without a platform that were looked into
}

// unsuitableError is that of an entry which another one of its index may do better than: it is for another platform,
// or no image.
type unsuitableError struct{ error }

func (e *unsuitableError) Unwrap() error { return e.error }

// configError is that of a configuration which is none of an image.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

// describe describes what a descriptor is of. told: an index says that it is for this platform, and is believed. Some
// images were built with the configuration of another platform, among them releases of pause and Cilium.
func (s *search) describe(ctx context.Context, src *Image, desc ocispec.Descriptor, depth int, told bool) error {
	at := desc
	if !images.IsManifestType(at.MediaType) && !images.IsIndexType(at.MediaType) {
		at.MediaType = ocispec.MediaTypeImageManifest // so that it is looked for among manifests, not blobs
	}
	if err := s.Limits.length(at); err != nil {
		return fmt.Errorf("manifest %s: %w", desc.Digest, err)
	}
	raw, err := s.read(ctx, at)
	if err != nil {
		return err
	}
	if err := s.Limits.CheckDocument(raw); err != nil {
		return fmt.Errorf("manifest %s: %w", desc.Digest, err)
	}
	var doc struct {
		SchemaVersion int                  `json:"schemaVersion"`
		MediaType     string               `json:"mediaType"`
		ArtifactType  string               `json:"artifactType"`
		Config        ocispec.Descriptor   `json:"config"`
		Layers        []ocispec.Descriptor `json:"layers"`
		Manifests     []ocispec.Descriptor `json:"manifests"`
		FSLayers      json.RawMessage      `json:"fsLayers"`
		Annotations   map[string]string    `json:"annotations"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("manifest %s does not parse: %w: %w", desc.Digest, err, errdefs.ErrInvalidArgument)
	}
	for _, key := range checkpointAnnotations {
		if n := len(doc.Annotations[key]); n > maxCheckpoint {
			return fmt.Errorf("manifest %s: the annotation %s has %d bytes, more than %d: %w", desc.Digest, key, n,
				maxCheckpoint, errdefs.ErrInvalidArgument)
		}
		src.Checkpoint = cmp.Or(src.Checkpoint, doc.Annotations[key])
	}
	mediaType := doc.MediaType
	if mediaType == "" {
		mediaType = desc.MediaType
	}
	switch {
	case doc.SchemaVersion == 1 || doc.FSLayers != nil || mediaType == images.MediaTypeDockerSchema1Manifest:
		return fmt.Errorf("manifest %s is of Docker's schema 1, which is no longer supported: push the image again with a "+
			"current tool: %w", desc.Digest, errdefs.ErrInvalidArgument)
	case doc.Manifests != nil && (doc.Layers != nil || doc.Config.Digest != ""):
		return fmt.Errorf("manifest %s is both a manifest and an index: %w", desc.Digest, errdefs.ErrInvalidArgument)
	case doc.Manifests != nil:
		if depth >= 3 {
			return fmt.Errorf("index %s is nested too deep: %w", desc.Digest, errdefs.ErrInvalidArgument)
		}
		return s.describeIndex(ctx, src, desc.Digest, doc.Manifests, depth)
	case doc.Config.Digest == "":
		return &unsuitableError{fmt.Errorf("%s %s is not an image: %w", mediaType, desc.Digest, errdefs.ErrInvalidArgument)}
	}
	if err := s.Limits.manifest(doc.Layers); err != nil {
		return fmt.Errorf("manifest %s: %w", desc.Digest, err)
	}
	src.Manifest, src.RawManifest, src.Layers = desc, raw, doc.Layers
	// Some images have an artifactType, and some a configuration of an odd type: what has all that an image needs is one.
	odd := !configOfImage(doc.Config.MediaType)
	mayBeArtifact := doc.ArtifactType != "" || odd
	if odd && s.Limits.length(doc.Config) != nil || // it is longer than any image's
		mayBeArtifact && slices.ContainsFunc(doc.Layers, func(l ocispec.Descriptor) bool { return !isTar(l.MediaType) }) {
		return s.describeArtifact(src, doc.ArtifactType, doc.Config)
	}
	err = s.describeConfig(ctx, src, doc.Config, s.read, told)
	var none *configError
	if mayBeArtifact && errors.As(err, &none) {
		return s.describeArtifact(src, doc.ArtifactType, doc.Config)
	}
	return err
}

// describeIndex describes the image of an index that fits best. Where no entry says that it is for the platform, those
// that name none are looked into: oras and buildah make such entries, and the platform is in the configuration.
func (s *search) describeIndex(ctx context.Context, src *Image, index digest.Digest, manifests []ocispec.Descriptor,
	depth int) error {

	best, untold, have := s.choose(manifests)
	if best != nil {
		return s.describe(ctx, src, *best, depth+1, true)
	}
	var found *Image
	for i := range untold {
		if s.untold++; s.untold > maxUntold {
			return fmt.Errorf("index %s has no image for %s, and more than the %d entries without a platform that are looked "+
				"into: %w", index, s.Platform, maxUntold, errdefs.ErrInvalidArgument)
		}
		one := *src
		err := s.describe(ctx, &one, untold[i], depth+1, false)
		if len(manifests) == 1 { // an image may leave it to the index to say nothing, too
			*src = one
			return err
		}
		var unsuitable *unsuitableError
		switch {
		case errors.As(err, &unsuitable):
			continue
		case err != nil:
			return err
		case one.Image.OS == "" || one.Image.Architecture == "":
			continue
		}
		if found == nil || s.match.Less(platforms.Normalize(one.Image.Platform), platforms.Normalize(found.Image.Platform)) {
			found = &one
		}
	}
	if found != nil {
		*src = *found
		return nil
	}
	only := "only for " + strings.Join(have, ", ")
	if len(untold) > 0 {
		only = fmt.Sprintf("neither by its entries nor by the configurations of %d without a platform", len(untold))
	}
	return &unsuitableError{fmt.Errorf("index %s has no image for %s, %s: %w", index, s.Platform, only,
		errdefs.ErrNotFound)}
}

// choose picks the best manifest of an index for the store's platform, or else those that may be for it: manifests
// and indexes that name no platform. have are the platforms that are named.
func (d *Describer) choose(manifests []ocispec.Descriptor) (best *ocispec.Descriptor, untold []ocispec.Descriptor,
	have []string) {

	for i := range manifests {
		m := &manifests[i]
		if m.Annotations[attestation] != "" {
			continue
		}
		if m.Platform == nil {
			if images.IsManifestType(m.MediaType) || images.IsIndexType(m.MediaType) {
				untold = append(untold, *m)
			}
			continue
		}
		p := platforms.Normalize(*m.Platform)
		if p.OS != "unknown" && len(have) < 50 {
			have = append(have, platforms.FormatAll(p))
		}
		if d.match.Match(p) && (best == nil || d.match.Less(p, platforms.Normalize(*best.Platform))) {
			best = m
		}
	}
	return best, untold, have
}

func (d *Describer) describeConfig(ctx context.Context, src *Image, desc ocispec.Descriptor,
	read func(context.Context, ocispec.Descriptor) ([]byte, error), told bool) error {

	if images.IsManifestType(desc.MediaType) || images.IsIndexType(desc.MediaType) {
		// A push would put it in the place of the image's manifest.
		return fmt.Errorf("the manifest has the configuration %s of type %q, which is that of a manifest: %w", desc.Digest,
			desc.MediaType, errdefs.ErrInvalidArgument)
	}
	if err := d.Limits.length(desc); err != nil {
		return fmt.Errorf("configuration %s: %w", desc.Digest, err)
	}
	raw, err := read(ctx, desc)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := d.Limits.CheckDocument(raw); err != nil {
		return fmt.Errorf("configuration %s: %w", desc.Digest, err)
	}
	var img ocispec.Image
	if err := json.Unmarshal(raw, &img); err != nil {
		return &configError{fmt.Errorf("configuration %s (%s) does not parse: %w: %w", desc.Digest, desc.MediaType, err,
			errdefs.ErrInvalidArgument)}
	}
	if err := d.Limits.config(&img.Config); err != nil {
		return fmt.Errorf("configuration %s: %w", desc.Digest, err)
	}
	if img.RootFS.Type != "layers" {
		return &unsuitableError{&configError{fmt.Errorf("%s %s is not the configuration of an image: %w", desc.MediaType,
			desc.Digest, errdefs.ErrInvalidArgument)}}
	}
	if len(img.RootFS.DiffIDs) != len(src.Layers) {
		return fmt.Errorf("the manifest has %d layers, the configuration %d: %w",
			len(src.Layers), len(img.RootFS.DiffIDs), errdefs.ErrInvalidArgument)
	}
	if !told && img.OS != "" && img.Architecture != "" {
		p := platforms.Normalize(img.Platform)
		if !d.match.Match(p) {
			return &unsuitableError{fmt.Errorf("the image is for %s, not for %s: %w", platforms.FormatAll(p), d.Platform,
				errdefs.ErrNotFound)}
		}
	}
	for i, l := range src.Layers {
		if err := checkLayer(l); err != nil {
			return err
		}
		if err := img.RootFS.DiffIDs[i].Validate(); err != nil {
			return fmt.Errorf("diff ID %q: %w: %w", img.RootFS.DiffIDs[i], err, errdefs.ErrInvalidArgument)
		}
	}
	src.ID, src.RawConfig, src.Image, src.DiffIDs = desc.Digest, raw, img, img.RootFS.DiffIDs
	return nil
}

// encrypted is the end of the media type of an encrypted layer. What is before it is the media type of the plain layer.
const encrypted = "+encrypted"

// Encrypted tells whether a layer is encrypted: see package encryption.
func Encrypted(layer ocispec.Descriptor) bool { return strings.HasSuffix(layer.MediaType, encrypted) }

// checkLayer refuses layers that are not a tar as OCI or Docker have them, encrypted or not. How it is packed is seen
// from its bytes.
func checkLayer(l ocispec.Descriptor) error {
	if !isTar(l.MediaType) {
		return fmt.Errorf("layer %s is of type %q, which is not supported: %w", l.Digest, l.MediaType,
			errdefs.ErrInvalidArgument)
	}
	if err := l.Digest.Validate(); err != nil {
		return fmt.Errorf("layer digest %q: %w: %w", l.Digest, err, errdefs.ErrInvalidArgument)
	}
	if l.Size <= 0 {
		return fmt.Errorf("layer %s of %d bytes: %w", l.Digest, l.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

// isTar tells whether a media type is that of a layer of an image, encrypted or not.
func isTar(mediaType string) bool {
	switch strings.Replace(strings.TrimSuffix(mediaType, encrypted), "nondistributable.", "", 1) {
	case ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd,
		images.MediaTypeDockerSchema2Layer, images.MediaTypeDockerSchema2LayerGzip, images.MediaTypeDockerSchema2LayerZstd,
		images.MediaTypeDockerSchema2LayerForeign, images.MediaTypeDockerSchema2LayerForeignGzip:
		return true
	}
	return false
}
