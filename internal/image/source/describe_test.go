package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// documents are those of a registry, by their digests.
type documents map[digest.Digest][]byte

func (d documents) add(mediaType string, v any) ocispec.Descriptor {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	d[desc.Digest] = raw
	return desc
}

func (d documents) read(_ context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if raw, ok := d[desc.Digest]; ok {
		return raw, nil
	}
	return nil, fmt.Errorf("no %s: %w", desc.Digest, errdefs.ErrUnavailable)
}

// image adds one without layers for os/architecture/variant; empty: its configuration says nothing.
func (d documents) image(platform string) ocispec.Descriptor {
	img := ocispec.Image{}
	img.RootFS.Type = "layers"
	parts := append(strings.Split(platform, "/"), "", "")
	img.OS, img.Architecture, img.Variant = parts[0], parts[1], parts[2]
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{}}
	m.SchemaVersion = 2
	m.Config = d.add(ocispec.MediaTypeImageConfig, img)
	return d.add(m.MediaType, m)
}

func (d documents) index(entries ...ocispec.Descriptor) ocispec.Descriptor {
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: entries}
	index.SchemaVersion = 2
	return d.add(index.MediaType, index)
}

// TestAnEntryWithoutAPlatformIsChosenByItsConfiguration, and where no entry says that it is for the node alone.
// Seen to fail with entries without a platform left out.
func TestAnEntryWithoutAPlatformIsChosenByItsConfiguration(t *testing.T) {
	d := documents{}
	said := func(desc ocispec.Descriptor, os, architecture string) ocispec.Descriptor {
		desc.Platform = &ocispec.Platform{OS: os, Architecture: architecture}
		return desc
	}
	attests := func(desc ocispec.Descriptor) ocispec.Descriptor {
		desc.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest"}
		return desc
	}
	ours, other := d.image("linux/arm/v7"), d.image("linux/s390x")
	older, silent := d.image("linux/arm/v6"), d.image("")
	twin := attests(d.image("linux/arm/v7"))
	artifact := d.add(ocispec.MediaTypeImageManifest, ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest,
		Config: d.add("application/vnd.oci.empty.v1+json", struct{}{}), Layers: []ocispec.Descriptor{}})
	list := d.add(ocispec.MediaTypeImageManifest, map[string]any{"schemaVersion": 2, "artifactType": "a/sbom"})
	gone := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("gone"), Size: 4}
	many := make([]ocispec.Descriptor, maxUntold+1)
	for i := range many {
		many[i] = d.image(fmt.Sprintf("linux/none/v%d", i))
	}
	for name, c := range map[string]struct {
		index ocispec.Descriptor
		want  ocispec.Descriptor
		fails error
	}{
		"the only one":                       {index: d.index(ours), want: ours},
		"the only one, which says nothing":   {index: d.index(silent), want: silent},
		"the only one, for another platform": {index: d.index(other), fails: errdefs.ErrNotFound},
		"the second":                         {index: d.index(other, ours), want: ours},
		"the best":                           {index: d.index(older, ours, other), want: ours},
		"one that says it first":             {index: d.index(ours, said(older, "linux", "arm")), want: older},
		"one beside another platform":        {index: d.index(said(other, "linux", "s390x"), ours), want: ours},
		"one beside what is no image":        {index: d.index(artifact, list, ours), want: ours},
		"one beside one that says nothing":   {index: d.index(silent, ours), want: ours},
		"several that say nothing":           {index: d.index(silent, other), fails: errdefs.ErrNotFound},
		"in an index within":                 {index: d.index(d.index(other), d.index(other, ours)), want: ours},
		"an index within, said elsewhere":    {index: d.index(d.index(other), said(ours, "linux", "arm")), want: ours},
		"an attestation":                     {index: d.index(other, twin), fails: errdefs.ErrNotFound},
		"an attestation of unknown":          {index: d.index(said(twin, "unknown", "unknown")), fails: errdefs.ErrNotFound},
		"an attestation for the platform":    {index: d.index(said(twin, "linux", "arm")), fails: errdefs.ErrNotFound},
		"an entry that cannot be read":       {index: d.index(gone, ours), fails: errdefs.ErrUnavailable},
		"too many":                           {index: d.index(append(many, ours)...), fails: errdefs.ErrInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			limits := DefaultLimits
			describer, err := NewDescriber("linux/arm/v7", &limits)
			if err != nil {
				t.Fatal(err)
			}
			var got Image
			err = describer.Describe(t.Context(), &got, c.index, d.read)
			if c.fails != nil {
				if !errors.Is(err, c.fails) {
					t.Errorf("error %v, and should be %v", err, c.fails)
				}
				return
			}
			if err != nil || got.Manifest.Digest != c.want.Digest {
				t.Errorf("%s, and should be %s; %v", got.Manifest.Digest, c.want.Digest, err)
			}
		})
	}
}

// TestAConfigurationIsNoManifest: a document can be both, and a push would bring it to the tag in place of the image.
// Seen to fail without the check of its type.
func TestAConfigurationIsNoManifest(t *testing.T) {
	d := documents{}
	both := map[string]any{"os": "linux", "architecture": "s390x", "rootfs": map[string]any{"type": "layers"},
		"schemaVersion": 2, "manifests": []ocispec.Descriptor{}}
	for _, mediaType := range []string{ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex,
		"application/vnd.docker.distribution.manifest.list.v2+json"} {
		m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{},
			Config: d.add(mediaType, both)}
		m.SchemaVersion = 2
		limits := DefaultLimits
		describer, err := NewDescriber("linux/s390x", &limits)
		if err != nil {
			t.Fatal(err)
		}
		err = describer.Describe(t.Context(), &Image{}, d.add(m.MediaType, m), d.read)
		if !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: error %v", mediaType, err)
		}
	}
}

// TestWhatIsKeptOfAConfigurationIsBounded: the record of each image is in memory. Seen to fail with what processes get
// bounded alone: labels of four megabytes were kept of every image.
func TestWhatIsKeptOfAConfigurationIsBounded(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]ocispec.ImageConfig{
		"a label":     {Labels: map[string]string{"a": long}},
		"a long name": {Labels: map[string]string{long: ""}},
		"a port":      {ExposedPorts: map[string]struct{}{long: {}}},
		"a volume":    {Volumes: map[string]struct{}{long: {}}},
		"a variable":  {Env: []string{"X=" + long}},
	} {
		limits := DefaultLimits
		if err := limits.config(&c); !errors.Is(err, errdefs.ErrResourceExhausted) ||
			!strings.Contains(err.Error(), KeyConfigText) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	d := documents{}
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{},
		Annotations: map[string]string{checkpointAnnotations[0]: long}, Config: d.add(ocispec.MediaTypeImageConfig, 1)}
	limits := DefaultLimits
	describer, err := NewDescriber("linux/s390x", &limits)
	if err != nil {
		t.Fatal(err)
	}
	err = describer.Describe(t.Context(), &Image{}, d.add(m.MediaType, m), d.read)
	if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "the annotation") {
		t.Errorf("a long annotation: error %v", err)
	}
}
