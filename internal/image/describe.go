package image

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// source is an image as a registry or an archive describes it.
type source struct {
	name      string // to be recorded beside target's digest; empty: none
	tag       string // to be recorded; empty: none
	target    digest.Digest
	manifest  ocispec.Descriptor
	layers    []ocispec.Descriptor
	diffIDs   []digest.Digest
	id        digest.Digest
	image     ocispec.Image
	rawConfig []byte
	rawMan    []byte
	// checkpoint is what annotations name as the container that the image is a checkpoint of.
	checkpoint string
	// annotations are PullRequest.SpecAnnotations.
	annotations map[string]string
}

// checkpointAnnotations are those by which tools mark an image as a checkpoint.
var checkpointAnnotations = []string{metadata.CheckpointAnnotationName, "io.kubernetes.cri-o.annotations.checkpoint.name"}

// describer finds out what an image is made of, from its manifests and its configuration. It has no state.
type describer struct {
	limits   *Limits
	platform platforms.MatchComparer
	name     string // of the platform, for errors
}

// describe reads manifests down to the one for this platform, and its configuration.
func (d *describer) describe(ctx context.Context, src *source, target ocispec.Descriptor,
	read func(context.Context, ocispec.Descriptor) ([]byte, error)) error {

	desc := target
	for depth := 0; ; depth++ {
		at := desc
		if !images.IsManifestType(at.MediaType) && !images.IsIndexType(at.MediaType) {
			at.MediaType = ocispec.MediaTypeImageManifest // so that it is looked for among manifests, not blobs
		}
		if err := d.limits.length(at); err != nil {
			return fmt.Errorf("manifest %s: %w", desc.Digest, err)
		}
		raw, err := read(ctx, at)
		if err != nil {
			return err
		}
		if err := d.limits.document(raw); err != nil {
			return fmt.Errorf("manifest %s: %w", desc.Digest, err)
		}
		var doc struct {
			SchemaVersion int                  `json:"schemaVersion"`
			MediaType     string               `json:"mediaType"`
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
			src.checkpoint = cmp.Or(src.checkpoint, doc.Annotations[key])
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
			if desc, err = d.choose(desc.Digest, doc.Manifests); err != nil {
				return err
			}
			continue
		case doc.Config.Digest == "":
			return fmt.Errorf("%s %s is not an image: %w", mediaType, desc.Digest, errdefs.ErrInvalidArgument)
		}
		if err := d.limits.manifest(doc.Layers); err != nil {
			return fmt.Errorf("manifest %s: %w", desc.Digest, err)
		}
		src.manifest, src.rawMan, src.layers = desc, raw, doc.Layers
		return d.describeConfig(ctx, src, doc.Config, read)
	}
}

// choose picks the best manifest of an index for the store's platform.
func (d *describer) choose(index digest.Digest, manifests []ocispec.Descriptor) (ocispec.Descriptor, error) {
	var best *ocispec.Descriptor
	var have []string
	for i := range manifests {
		m := &manifests[i]
		if m.Platform == nil {
			// An index of one image, made by a tool that says no platform; the configuration is checked later.
			if images.IsManifestType(m.MediaType) && len(manifests) == 1 || images.IsIndexType(m.MediaType) {
				return *m, nil
			}
			continue
		}
		p := platforms.Normalize(*m.Platform)
		if p.OS != "unknown" && len(have) < 50 {
			have = append(have, platforms.FormatAll(p))
		}
		if d.platform.Match(p) && (best == nil || d.platform.Less(p, platforms.Normalize(*best.Platform))) {
			best = m
		}
	}
	if best == nil {
		return ocispec.Descriptor{}, fmt.Errorf("index %s has no image for %s, only for %s: %w",
			index, d.name, strings.Join(have, ", "), errdefs.ErrNotFound)
	}
	return *best, nil
}

func (d *describer) describeConfig(ctx context.Context, src *source, desc ocispec.Descriptor,
	read func(context.Context, ocispec.Descriptor) ([]byte, error)) error {

	if err := d.limits.length(desc); err != nil {
		return fmt.Errorf("configuration %s: %w", desc.Digest, err)
	}
	raw, err := read(ctx, desc)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := d.limits.document(raw); err != nil {
		return fmt.Errorf("configuration %s: %w", desc.Digest, err)
	}
	var img ocispec.Image
	if err := json.Unmarshal(raw, &img); err != nil {
		return fmt.Errorf("configuration %s (%s) does not parse: %w: %w", desc.Digest, desc.MediaType, err, errdefs.ErrInvalidArgument)
	}
	if err := d.limits.config(&img.Config); err != nil {
		return fmt.Errorf("configuration %s: %w", desc.Digest, err)
	}
	if img.RootFS.Type != "layers" {
		return fmt.Errorf("%s %s is not the configuration of an image: %w", desc.MediaType, desc.Digest, errdefs.ErrInvalidArgument)
	}
	if len(img.RootFS.DiffIDs) != len(src.layers) {
		return fmt.Errorf("the manifest has %d layers, the configuration %d: %w",
			len(src.layers), len(img.RootFS.DiffIDs), errdefs.ErrInvalidArgument)
	}
	if img.OS != "" && img.Architecture != "" {
		p := platforms.Normalize(img.Platform)
		if !d.platform.Match(p) {
			return fmt.Errorf("the image is for %s, not for %s: %w", platforms.FormatAll(p), d.name, errdefs.ErrNotFound)
		}
	}
	for i, l := range src.layers {
		if err := checkLayer(l); err != nil {
			return err
		}
		if err := img.RootFS.DiffIDs[i].Validate(); err != nil {
			return fmt.Errorf("diff ID %q: %w: %w", img.RootFS.DiffIDs[i], err, errdefs.ErrInvalidArgument)
		}
	}
	src.id, src.rawConfig, src.image, src.diffIDs = desc.Digest, raw, img, img.RootFS.DiffIDs
	return nil
}

// checkLayer refuses layers that are not a tar as OCI or Docker have them. How it is packed is seen from its bytes.
func checkLayer(l ocispec.Descriptor) error {
	switch strings.Replace(l.MediaType, "nondistributable.", "", 1) {
	case ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd,
		images.MediaTypeDockerSchema2Layer, images.MediaTypeDockerSchema2LayerGzip, images.MediaTypeDockerSchema2LayerZstd,
		images.MediaTypeDockerSchema2LayerForeign, images.MediaTypeDockerSchema2LayerForeignGzip:
	default:
		return fmt.Errorf("layer %s is of type %q, which is not supported: %w", l.Digest, l.MediaType, errdefs.ErrInvalidArgument)
	}
	if err := l.Digest.Validate(); err != nil {
		return fmt.Errorf("layer digest %q: %w: %w", l.Digest, err, errdefs.ErrInvalidArgument)
	}
	if l.Size <= 0 {
		return fmt.Errorf("layer %s of %d bytes: %w", l.Digest, l.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

// parsePlatform reads the name of a platform, os/architecture[/variant]; empty: this machine's.
func parsePlatform(text string) (match platforms.MatchComparer, name string, err error) {
	if text == "" {
		return platforms.Default(), platforms.DefaultString(), nil
	}
	p, err := platforms.Parse(text)
	if err != nil {
		return nil, "", err
	}
	return platforms.Only(p), text, nil
}
