package registrytest

import (
	"encoding/json"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Artifact is what is pushed of an artifact. Nothing of it is checked: a test may say anything.
type Artifact struct {
	Type        string // artifactType of the manifest; empty: the manifest has none
	ConfigType  string // of the configuration; empty: that of the empty configuration
	Config      []byte // nil: {}
	Files       []ArtifactFile
	Annotations map[string]string // of the manifest
}

// ArtifactFile is a layer of an artifact.
type ArtifactFile struct {
	Title       string // its name, in the annotation of the OCI; empty: it has none
	MediaType   string // empty: application/octet-stream
	Body        []byte
	Annotations map[string]string // further ones
}

// TitledFile is a file with a name.
func TitledFile(title, body string) ArtifactFile {
	return ArtifactFile{Title: title, Body: []byte(body)}
}

// Descriptor is that of the layer.
func (f ArtifactFile) Descriptor() ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: f.MediaType, Digest: digest.FromBytes(f.Body), Size: int64(len(f.Body)),
		Annotations: map[string]string{}}
	if d.MediaType == "" {
		d.MediaType = "application/octet-stream"
	}
	if f.Title != "" {
		d.Annotations[ocispec.AnnotationTitle] = f.Title
	}
	for key, value := range f.Annotations {
		d.Annotations[key] = value
	}
	return d
}

// Manifest is the manifest of the artifact.
func (a Artifact) Manifest() ocispec.Manifest {
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: a.Type, Annotations: a.Annotations, Layers: []ocispec.Descriptor{}}
	config := a.config()
	m.Config = ocispec.Descriptor{MediaType: a.ConfigType, Digest: digest.FromBytes(config), Size: int64(len(config))}
	if a.ConfigType == "" {
		m.Config.MediaType = ocispec.MediaTypeEmptyJSON
	}
	for _, f := range a.Files {
		m.Layers = append(m.Layers, f.Descriptor())
	}
	return m
}

func (a Artifact) config() []byte {
	if a.Config == nil {
		return ocispec.DescriptorEmptyJSON.Data
	}
	return a.Config
}

// PushArtifact stores an artifact under a repository and a tag, and returns the descriptor of its manifest. It goes
// past authentication and faults.
func (r *Registry) PushArtifact(repo, tag string, a Artifact) (ocispec.Descriptor, error) {
	r.blobs.put(a.config())
	for _, f := range a.Files {
		r.blobs.put(f.Body)
	}
	raw, err := json.Marshal(a.Manifest())
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: a.Type,
		Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	return desc, r.PutManifest(repo, tag, desc.MediaType, raw)
}
