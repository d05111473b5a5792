package source

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/unpack"
)

// Artifact is what a manifest describes that is no image: files, each of which is a layer as it is in the registry. See
// the "Guidelines for Artifact Usage" of the OCI's image specification.
type Artifact struct {
	Type   string             // the media type of what it is; never empty
	Config ocispec.Descriptor // of any media type
	Files  []File             // in the order of the layers
	Dirs   int                // that the files are in, without the root
}

// File is a file of an artifact.
type File struct {
	Path  string // relative, clean, and without ".."
	Layer int    // which of the artifact's layers is its content
}

// nameAnnotations are those of a layer that say where its file is, the first one first: the one of the OCI, which ORAS
// and Podman write, that of ModelPack, and what ModelPack called it before.
var nameAnnotations = []string{ocispec.AnnotationTitle, "org.cncf.model.filepath", "org.cnai.model.filepath"}

const (
	// maxMediaType is how long a media type may be (RFC 6838, section 4.2). It is kept in memory.
	maxMediaType = 127 + 1 + 127
	// maxName is how long the name of a file or a directory may be, and maxPath a path (limits.h of Linux).
	maxName, maxPath = 255, 4095
	// maxDepth is how many directories a file may be in. All together may be as many more as there are layers.
	maxDepth = 128
)

// Blobs are all parts of an image, or of an artifact, that are layers or as long as one.
func (i *Image) Blobs() []ocispec.Descriptor {
	if i.Artifact == nil {
		return i.Layers
	}
	return append([]ocispec.Descriptor{i.Artifact.Config}, i.Layers...)
}

// configOfImage tells whether the type of a configuration is that of an image. Registries and tools of Docker's first
// years have written others than Docker's own, or none (docker/distribution issue 1621).
func configOfImage(mediaType string) bool {
	switch mediaType {
	case ocispec.MediaTypeImageConfig, images.MediaTypeDockerSchema2Config,
		"", "application/octet-stream", "application/json", "text/html":
		return true
	}
	return false
}

// describeArtifact describes an artifact, of which nothing but the manifest is read.
func (d *Describer) describeArtifact(src *Image, artifactType string, config ocispec.Descriptor) error {
	a := &Artifact{Type: cmp.Or(artifactType, config.MediaType), Config: config}
	for i, blob := range append([]ocispec.Descriptor{config}, src.Layers...) {
		what := "configuration"
		if i > 0 {
			what = "layer"
		}
		if err := d.checkBlob(what, blob); err != nil {
			return err
		}
	}
	if len(a.Type) > maxMediaType {
		return fmt.Errorf("the artifact type of the manifest has %d bytes, more than %d: %w", len(a.Type), maxMediaType,
			errdefs.ErrInvalidArgument)
	}
	if err := a.place(src.Layers); err != nil {
		return err
	}
	if n := uint64(len(a.Files) + a.Dirs); n > d.Limits.Entries {
		return Beyond(fmt.Sprintf("the artifact has %d files and directories,", n), KeyEntries, d.Limits.Entries, "of them")
	}
	src.ID, src.Artifact, src.Checkpoint = src.Manifest.Digest, a, ""
	for _, l := range src.Layers {
		src.DiffIDs = append(src.DiffIDs, l.Digest)
	}
	return nil
}

// checkBlob refuses parts of an artifact that cannot be.
func (d *Describer) checkBlob(what string, blob ocispec.Descriptor) error {
	switch err := blob.Digest.Validate(); {
	case err != nil:
		return fmt.Errorf("%s digest %q: %w: %w", what, blob.Digest, err, errdefs.ErrInvalidArgument)
	case len(blob.MediaType) > maxMediaType:
		return fmt.Errorf("%s %s: its media type has %d bytes, more than %d: %w", what, blob.Digest, len(blob.MediaType),
			maxMediaType, errdefs.ErrInvalidArgument)
	case images.IsManifestType(blob.MediaType) || images.IsIndexType(blob.MediaType):
		// It would be read from, and pushed to, where manifests are.
		return fmt.Errorf("the manifest has the %s %s of type %q, which is that of a manifest: %w", what, blob.Digest,
			blob.MediaType, errdefs.ErrInvalidArgument)
	case blob.Size < 0:
		return fmt.Errorf("%s %s of %d bytes: %w", what, blob.Digest, blob.Size, errdefs.ErrInvalidArgument)
	case uint64(blob.Size) > d.Limits.Layer.Bytes:
		return Beyond(fmt.Sprintf("%s %s has %d bytes,", what, blob.Digest, blob.Size), unpack.KeyBytes,
			d.Limits.Layer.Bytes, "bytes")
	}
	return nil
}

// place finds out where the files of the layers are.
func (a *Artifact) place(layers []ocispec.Descriptor) error {
	files := map[string]int{} // path to layer
	dirs := map[string]int{}  // path to the layer of a file in it
	for i, l := range layers {
		p, err := filePath(l)
		if err != nil {
			return fmt.Errorf("layer %s: %w", l.Digest, err)
		}
		if p == "" {
			continue
		}
		other, taken := files[p]
		if taken && layers[other].Digest == l.Digest {
			continue
		}
		if !taken {
			other, taken = dirs[p]
		}
		for dir := path.Dir(p); dir != "." && !taken; dir = path.Dir(dir) {
			if other, taken = files[dir]; !taken {
				dirs[dir] = i
			}
		}
		if taken {
			return fmt.Errorf("the layers %s and %s have names that exclude one another, %.300q and %.300q: %w",
				layers[other].Digest, l.Digest, nameOf(layers[other]), nameOf(l), errdefs.ErrInvalidArgument)
		}
		files[p] = i
		a.Files = append(a.Files, File{Path: p, Layer: i})
	}
	a.Dirs = len(dirs)
	return nil
}

func nameOf(l ocispec.Descriptor) string {
	for _, key := range nameAnnotations {
		if name := l.Annotations[key]; name != "" {
			return name
		}
	}
	return ""
}

// filePath is where the file of a layer is: by its name, which is resolved in the root of the artifact, whatever it is.
// A layer without a name has the digest as its name, with a hyphen for the colon. The empty layer, by which artifacts
// say that they have no content, has no file unless it has a name.
func filePath(l ocispec.Descriptor) (string, error) {
	name := nameOf(l)
	if name == "" {
		if l.MediaType == ocispec.MediaTypeEmptyJSON {
			return "", nil
		}
		return l.Digest.Algorithm().String() + "-" + l.Digest.Encoded(), nil
	}
	p := strings.TrimPrefix(path.Clean("/"+name), "/")
	elements := strings.Split(p, "/")
	switch {
	case p == "":
		return "", fmt.Errorf("its name %.300q is that of the root directory: %w", name, errdefs.ErrInvalidArgument)
	case strings.ContainsRune(p, 0):
		return "", fmt.Errorf("its name %.300q has a NUL character: %w", name, errdefs.ErrInvalidArgument)
	case len(p) > maxPath, len(elements) > maxDepth,
		slices.ContainsFunc(elements, func(e string) bool { return len(e) > maxName }):
		return "", fmt.Errorf("its name %.300q is too long for a path: of %d bytes, of %d names, or with one of more than "+
			"%d bytes: %w", name, len(p), len(elements), maxName, errdefs.ErrInvalidArgument)
	}
	return p, nil
}
