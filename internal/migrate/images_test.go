package migrate

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"
)

// imageStore is a store as containerd lays it out.
type imageStore struct {
	t  *testing.T
	at *Store
	db *bbolt.DB
}

func newImageStore(t *testing.T) *imageStore {
	t.Helper()
	s := &imageStore{t: t, at: &Store{Root: t.TempDir(), Platform: "linux/amd64"}}
	dir := filepath.Join(s.at.Root, "io.containerd.metadata.v1.bolt")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.db, err = bbolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.db.Close() })
	return s
}

func (s *imageStore) blob(mediaType string, v any) ocispec.Descriptor {
	s.t.Helper()
	data, ok := v.([]byte)
	if !ok {
		var err error
		if data, err = json.Marshal(v); err != nil {
			s.t.Fatal(err)
		}
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	path := s.at.path(d.Digest)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return d
}

// image makes an index with an image for this platform, and one for another, none of whose blobs are there.
func (s *imageStore) image(content string) (index, layer ocispec.Descriptor) {
	layer = s.blob(ocispec.MediaTypeImageLayer, []byte(content))
	config := s.blob(ocispec.MediaTypeImageConfig, ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{layer.Digest}},
	})
	manifest := s.blob(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config,
		Layers: []ocispec.Descriptor{layer},
	})
	manifest.Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	other := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("arm"), Size: 3,
		Platform: &ocispec.Platform{OS: "linux", Architecture: "arm64"}}
	return s.blob(ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{other, manifest},
	}), layer
}

func (s *imageStore) name(namespace, name string, target ocispec.Descriptor, labels map[string]string) {
	s.t.Helper()
	err := s.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte("v1"))
		for _, key := range []string{namespace, "images", name} {
			if err == nil {
				b, err = b.CreateBucketIfNotExists([]byte(key))
			}
		}
		if err != nil {
			return err
		}
		t, err := b.CreateBucket([]byte("target"))
		if err != nil {
			return err
		}
		l, err := b.CreateBucket([]byte("labels"))
		if err != nil {
			return err
		}
		for k, v := range labels {
			if err := l.Put([]byte(k), []byte(v)); err != nil {
				return err
			}
		}
		return errors.Join(t.Put([]byte("digest"), []byte(target.Digest)),
			t.Put([]byte("mediatype"), []byte(target.MediaType)),
			t.Put([]byte("size"), binary.AppendVarint(nil, target.Size)))
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestContainerdsStoreIsReadWithNamesPinsAndWhatIsMissing(t *testing.T) {
	s := newImageStore(t)
	whole, _ := s.image("whole")
	broken, layer := s.image("discarded")
	pause, _ := s.image("pause")
	pinned := map[string]string{labelPinned: "pinned"}
	s.name(Namespace, "docker.io/library/whole:1", whole, pinned)
	s.name(Namespace, "docker.io/library/whole@"+whole.Digest.String(), whole, nil)
	s.name(Namespace, "sha256:0123", whole, nil)
	s.name(Namespace, "docker.io/library/broken:1", broken, nil)
	s.name(Namespace, "registry.k8s.io/pause:3.10", pause, pinned)
	s.name("moby", "docker.io/library/other:1", whole, nil)
	if err := os.Remove(s.at.path(layer.Digest)); err != nil {
		t.Fatal(err)
	}
	s.at.Sandbox = "registry.k8s.io/pause:3.10"

	if _, _, err := s.at.Names(); !errors.Is(err, ErrRunning) {
		t.Fatalf("a database that is held: %v", err)
	}
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	names, others, err := s.at.Names()
	if err != nil || others["moby"] != 1 || len(names) != 5 {
		t.Fatalf("%d names, others %v, %v", len(names), others, err)
	}
	images, err := s.at.Images(t.Context(), names)
	if err != nil || len(images) != 3 {
		t.Fatalf("%v, %v", images, err)
	}
	if b := images[0]; !strings.Contains(b.Missing, "discard_unpacked_layers") || b.Pinned {
		t.Errorf("the image without its layer: %+v", b)
	}
	img := images[1]
	want := []string{"docker.io/library/whole:1", "docker.io/library/whole@" + whole.Digest.String()}
	if img.Missing != "" || !img.Pinned || !slices.Equal(img.Names, want) || img.Digest != whole.Digest {
		t.Errorf("%+v", img)
	}
	if p := images[2]; p.Pinned || p.Missing != "" {
		t.Errorf("the sandbox's image: %+v", p)
	}
	var out bytes.Buffer
	if err := s.at.WriteArchive(t.Context(), &out, img); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = string(data)
	}
	named := `"io.containerd.image.name":"docker.io/library/whole:1"`
	if len(found) != 6 || !strings.Contains(found["index.json"], named) ||
		found["blobs/sha256/"+digest.FromString("whole").Encoded()] != "whole" {
		t.Errorf("the archive has %v", found)
	}
}

func TestABlobThatWasCutOffIsToldAndNotImported(t *testing.T) {
	s := newImageStore(t)
	target, layer := s.image("a layer")
	s.name(Namespace, "docker.io/library/cut:1", target, nil)
	if err := os.Truncate(s.at.path(layer.Digest), 3); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	names, _, err := s.at.Names()
	if err != nil {
		t.Fatal(err)
	}
	images, err := s.at.Images(t.Context(), names)
	if err != nil || len(images) != 1 || !strings.Contains(images[0].Missing, "has 3 bytes") {
		t.Errorf("%+v, %v", images, err)
	}
}

// TestAnArtifactOfContainerdsStoreIsTakenOver: what `ctr` or `nerdctl` have pulled, with its configuration, which
// nobody reads.
func TestAnArtifactOfContainerdsStoreIsTakenOver(t *testing.T) {
	s := newImageStore(t)
	config, weights := s.blob("application/x-config", []byte("no JSON")), s.blob("application/x-weights", []byte("0.1"))
	empty := s.blob("application/x-empty", []byte{})
	target := s.blob(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "a/b",
		Config: config, Layers: []ocispec.Descriptor{weights, empty},
	})
	s.name(Namespace, "docker.io/library/model:1", target, nil)
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	names, _, err := s.at.Names()
	if err != nil {
		t.Fatal(err)
	}
	images, err := s.at.Images(t.Context(), names)
	if err != nil || len(images) != 1 || images[0].Missing != "" {
		t.Fatalf("%+v, %v", images, err)
	}
	var out bytes.Buffer
	if err := s.at.WriteArchive(t.Context(), &out, images[0]); err != nil {
		t.Fatal(err)
	}
	var found []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, h.Name)
	}
	for _, d := range []ocispec.Descriptor{target, config, weights, empty} {
		if !slices.Contains(found, "blobs/sha256/"+d.Digest.Encoded()) {
			t.Errorf("the archive lacks %s of type %s: %v", d.Digest, d.MediaType, found)
		}
	}
}
