package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/asroot"
	"berth/internal/image/source"
	"berth/internal/image/unpack"
	rt "berth/internal/registrytest"
)

// part of an archive, by name.
type archivePart struct{ name, body string }

func archiveOf(t testing.TB, parts ...archivePart) []byte {
	t.Helper()
	var out []rt.Entry
	for _, p := range parts {
		out = append(out, rt.File(p.name, 0o644, p.body))
	}
	data, err := rt.Tar(out...)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// dockerSeed is what docker save writes, of layers.
func dockerSeed(t testing.TB, layers ...[]byte) []byte {
	t.Helper()
	img := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}}
	img.RootFS.Type = "layers"
	list := []map[string]any{{"Config": "c.json", "RepoTags": []string{"a.test/b:1"}, "Layers": []string{}}}
	var parts []archivePart
	for i, l := range layers {
		name := fmt.Sprintf("l%d.tar", i)
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, digest.FromBytes(l))
		list[0]["Layers"] = append(list[0]["Layers"].([]string), name)
		parts = append(parts, archivePart{name, string(l)})
	}
	config, err := json.Marshal(img)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return archiveOf(t, append(parts, archivePart{"c.json", string(config)},
		archivePart{"manifest.json", string(manifest)})...)
}

// layoutSeed is an OCI image layout.
func layoutSeed(t testing.TB, layers ...[]byte) []byte {
	t.Helper()
	img := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}}
	img.RootFS.Type = "layers"
	var parts []archivePart
	blob := func(mediaType string, data []byte) ocispec.Descriptor {
		d := digest.FromBytes(data)
		parts = append(parts, archivePart{"blobs/sha256/" + d.Encoded(), string(data)})
		return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
	}
	asJSON := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	m.SchemaVersion = 2
	for _, l := range layers {
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, digest.FromBytes(l))
		m.Layers = append(m.Layers, blob(ocispec.MediaTypeImageLayer, l))
	}
	m.Config = blob(ocispec.MediaTypeImageConfig, asJSON(img))
	d := blob(m.MediaType, asJSON(m))
	d.Annotations = map[string]string{ocispec.AnnotationRefName: "a.test/b:2"}
	index := ocispec.Index{Manifests: []ocispec.Descriptor{d}}
	index.SchemaVersion = 2
	return archiveOf(t, append(parts, archivePart{"index.json", string(asJSON(index))},
		archivePart{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`})...)
}

// artifactSeed is an OCI layout with an artifact of files with these titles.
func artifactSeed(t testing.TB, titles ...string) []byte {
	t.Helper()
	a := rt.Artifact{Type: "a/b"}
	parts := []archivePart{{"blobs/sha256/" + ocispec.DescriptorEmptyJSON.Digest.Encoded(), "{}"}}
	for _, title := range titles {
		a.Files = append(a.Files, rt.TitledFile(title, "of "+title))
		last := a.Files[len(a.Files)-1]
		parts = append(parts, archivePart{"blobs/sha256/" + last.Descriptor().Digest.Encoded(), string(last.Body)})
	}
	m := a.Manifest()
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	index := ocispec.Index{Manifests: []ocispec.Descriptor{d}}
	index.SchemaVersion = 2
	list, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	return archiveOf(t, append(parts, archivePart{"blobs/sha256/" + d.Digest.Encoded(), string(raw)},
		archivePart{"index.json", string(list)}, archivePart{"oci-layout", `{"imageLayoutVersion":"1.0.0"}`})...)
}

// FuzzImport imports archives of any content and packing. Whatever becomes of them, the store is as it was once
// their images are removed.
func FuzzImport(f *testing.F) {
	asroot.Need(f, "chown")
	one := mustTar(f, rt.Dir("a", 0o700), rt.Symlink("l", "a"), rt.File("a/f", 0o644, "f"))
	two := mustTar(f, rt.File("l/g", 0o644, "g"), rt.File("a/h", 0o644, "h"), rt.Whiteout("a/f"))
	linked := mustTar(f, rt.Symlink("manifest.json", "x"), rt.Hardlink("x", "y"), rt.Symlink("y", "manifest.json"),
		rt.File("index.json", 0o644, "{}"))
	for packing := range byte(3) {
		for _, data := range [][]byte{
			dockerSeed(f), dockerSeed(f, one), dockerSeed(f, one, two, one), layoutSeed(f),
			layoutSeed(f, one, two), linked, one, nil, artifactSeed(f, "a/b", "../../c", "a/d"),
		} {
			f.Add(packing, data)
		}
	}
	f.Add(byte(3), []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"))
	f.Add(byte(3), []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 0x01, 0x00, 0x00})
	var once sync.Once
	var s *Store
	var root string
	open := func(t testing.TB) {
		var err error
		if root, err = os.MkdirTemp("/dev/shm", "berth-fuzz-"); err != nil {
			t.Fatal(err)
		}
		s, err = Open(context.Background(), Config{
			Children: testChildren(t), Root: filepath.Join(root, "store"), Logger: slog.New(slog.DiscardHandler),
			Settings: Settings{Limits: source.Limits{
				Layer:   unpack.Limits{Entries: 10_000, Bytes: 64 << 20, PathMemory: 4 << 20},
				Entries: 20_000, Bytes: 64 << 20,
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "bait"), []byte("bait"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.Cleanup(func() {
		if s != nil {
			s.Close()
			os.RemoveAll(root)
		}
	})
	f.Fuzz(func(t *testing.T, packing byte, data []byte) {
		if len(data) > 1<<18 {
			return
		}
		once.Do(func() { open(t) })
		if packing%4 < 3 {
			data = rt.Checksummed(data)
		}
		var in bytes.Buffer
		var z io.WriteCloser
		switch packing % 4 {
		case 1:
			z = gzip.NewWriter(&in)
		case 2:
			z, _ = zstd.NewWriter(&in)
		default:
			in.Write(data)
		}
		if z != nil {
			if _, err := z.Write(data); err != nil {
				t.Fatal(err)
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.ImportArchive(context.Background(), &in)
		known := false
		for _, e := range []error{errdefs.ErrInvalidArgument, errdefs.ErrResourceExhausted, errdefs.ErrNotFound,
			errdefs.ErrFailedPrecondition} {
			known = known || errors.Is(err, e)
		}
		if err != nil && !known {
			t.Errorf("error %v is nobody's", err)
		}
		images, err := s.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, img := range images {
			if err := s.Remove(context.Background(), img.ID); err != nil {
				t.Error(err)
			}
		}
		if left, err := os.ReadDir(filepath.Join(root, "store/layers")); err != nil || len(left) != 1 {
			t.Errorf("layers are left: %v, %v", left, err)
		}
		if left, err := os.ReadDir(root); err != nil || len(left) != 2 {
			t.Errorf("beside the store: %v, %v", left, err)
		}
		if left, err := filepath.Glob(filepath.Join(root, "store/import-*")); err != nil || len(left) != 0 {
			t.Errorf("archives are left: %v, %v", left, err)
		}
	})
}
