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

// TestWhatIsAnImageAndWhatAnArtifact: an artifactType alone makes no artifact of what has all that an image needs.
func TestWhatIsAnImageAndWhatAnArtifact(t *testing.T) {
	d := documents{}
	tar := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("a tar"), Size: 5}
	other := ocispec.Descriptor{MediaType: "application/x-other", Digest: digest.FromString("other"), Size: 5}
	img := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "s390x"}}
	img.RootFS.Type = "layers"
	img.RootFS.DiffIDs = []digest.Digest{digest.FromString("unpacked")}
	whole := func(mediaType string) ocispec.Descriptor { return d.add(mediaType, img) }
	chart := d.add("application/vnd.cncf.helm.config.v1+json", map[string]string{"name": "chart"})
	empty := d.add(ocispec.MediaTypeEmptyJSON, struct{}{})
	noJSON := ocispec.Descriptor{MediaType: "application/x-weights", Digest: digest.FromString("\x00"), Size: 1}
	d[noJSON.Digest] = []byte{0}
	huge := ocispec.Descriptor{MediaType: "application/x-weights", Digest: digest.FromString("huge"), Size: 1 << 30}
	odd := d.add(ocispec.MediaTypeImageConfig, struct{}{})
	ours, docker := whole(ocispec.MediaTypeImageConfig), whole("application/vnd.docker.container.image.v1+json")
	early, silent, plugin := whole("application/octet-stream"), whole(""), whole("application/vnd.docker.plugin.v1+json")
	manifest := d.add(ocispec.MediaTypeImageManifest, 1)
	nowhere := ocispec.Descriptor{MediaType: "a/b", Digest: "sha256:../x", Size: 1}
	negative := ocispec.Descriptor{MediaType: "a/b", Digest: other.Digest, Size: -1}
	type list = []ocispec.Descriptor
	const refused = "refused"
	for name, c := range map[string]struct {
		artifactType string
		config       ocispec.Descriptor
		layers       list
		want         string // the type of the artifact; empty: an image
	}{
		"an image":                           {"", ours, list{tar}, ""},
		"an image of Docker's":               {"", docker, list{tar}, ""},
		"an image of an early registry":      {"", early, list{tar}, ""},
		"an image without a type":            {"", silent, list{tar}, ""},
		"an image that has an artifact's":    {"a/b", ours, list{tar}, ""},
		"an image with an odd type":          {"", plugin, list{tar}, ""},
		"an image of odd layers":             {"", ours, list{other}, refused},
		"an image's type of no image":        {"", odd, list{tar}, refused},
		"an artifact":                        {"a/b", empty, list{other}, "a/b"},
		"an artifact by its configuration":   {"", chart, list{other}, chart.MediaType},
		"an artifact of tars":                {"a/b", empty, list{tar}, "a/b"},
		"an artifact of tars and a chart":    {"", chart, list{tar}, chart.MediaType},
		"an artifact without layers":         {"a/b", empty, nil, "a/b"},
		"an artifact with an image's type":   {"a/b", odd, list{tar}, "a/b"},
		"an artifact that says it is whole":  {"a/b", ours, list{tar, other}, "a/b"},
		"a configuration that is no JSON":    {"", noJSON, list{tar}, noJSON.MediaType},
		"a configuration that is not read":   {"", huge, list{other}, huge.MediaType},
		"a long configuration beside a tar":  {"", huge, list{tar}, huge.MediaType},
		"a type that is too long":            {strings.Repeat("a", 256), empty, list{other}, refused},
		"a configuration that is a manifest": {"a/b", manifest, list{other}, refused},
		"a configuration without a digest":   {"a/b", nowhere, list{other}, refused},
		"a layer of less than nothing":       {"a/b", empty, list{negative}, refused},
		"a layer without a digest":           {"a/b", empty, list{nowhere}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: c.artifactType, Config: c.config,
				Layers: c.layers, Annotations: map[string]string{checkpointAnnotations[0]: "name"}}
			m.SchemaVersion = 2
			limits := DefaultLimits
			describer, err := NewDescriber("linux/s390x", &limits)
			if err != nil {
				t.Fatal(err)
			}
			var got Image
			target := d.add(m.MediaType, m)
			err = describer.Describe(t.Context(), &got, target, d.read)
			switch {
			case c.want == refused:
				if !errors.Is(err, errdefs.ErrInvalidArgument) {
					t.Errorf("error %v", err)
				}
			case err != nil:
				t.Error(err)
			case c.want == "" && (got.Artifact != nil || got.ID != c.config.Digest):
				t.Errorf("it is the artifact %+v", got.Artifact)
			case c.want != "" && (got.Artifact == nil || got.Artifact.Type != c.want || got.ID != target.Digest ||
				got.Checkpoint != ""):
				t.Errorf("it is %+v, %+v", got, got.Artifact)
			}
		})
	}
}
