package migrate

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"
)

// entry is one of a layer.
type entry struct{ name, body, link string }

func packed(t *testing.T, entries []entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.body)), Typeflag: tar.TypeReg}
		if e.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// storeOf writes a store with one image, named example.com/a:1, of one layer, and returns its root, the layer's
// directory and its tar.
func storeOf(t *testing.T, entries ...entry) (root, diff string, plain []byte) {
	t.Helper()
	root, plain = t.TempDir(), packed(t, entries)
	diff = filepath.Join(root, "overlay", "base", "diff")
	for _, dir := range []string{
		diff, filepath.Join(root, "overlay-layers"), filepath.Join(root, "overlay-images", "one"),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range entries {
		path := filepath.Join(diff, e.name)
		if e.link != "" {
			if err := os.Symlink(e.link, path); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(e.body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	metadata, err := os.Create(filepath.Join(root, "overlay-layers", "base.tar-split.gz"))
	if err != nil {
		t.Fatal(err)
	}
	zipped := gzip.NewWriter(metadata)
	r, done, err := asm.NewInputTarStreamWithDone(bytes.NewReader(plain), storage.NewJSONPacker(zipped),
		storage.NewDiscardFilePutter())
	if err == nil {
		_, err = io.Copy(io.Discard, r)
		err = errors.Join(err, <-done)
	}
	if err != nil || zipped.Close() != nil || metadata.Close() != nil {
		t.Fatal(err)
	}
	diffID := digest.FromBytes(plain)
	config := marshalled(t, ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}},
	})
	manifest := marshalled(t, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config),
			Size: int64(len(config))},
		Layers: []ocispec.Descriptor{{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("as pulled"),
			Size: 9}},
	})
	key := digest.FromBytes(config).String()
	for path, data := range map[string][]byte{
		filepath.Join("overlay-images", "one", "manifest"):    manifest,
		filepath.Join("overlay-images", "one", dataName(key)): config,
		filepath.Join("overlay-images", "images.json"): marshalled(t, []storedImage{{ID: "one",
			Digest: digest.FromBytes(manifest), Names: []string{"example.com/a:1"}, Layer: "base",
			Data: []string{"manifest", key}}}),
		filepath.Join("overlay-layers", "layers.json"): marshalled(t, []storedLayer{{ID: "base", DiffID: diffID,
			Size: int64(len(plain))}}),
	} {
		if err := os.WriteFile(filepath.Join(root, path), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root, diff, plain
}

func marshalled(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// archived writes the archive of the only image of a store, and returns its parts.
func archived(t *testing.T, root string) (map[string]string, error) {
	t.Helper()
	s := &LayerStore{Roots: []string{root}}
	images, err := s.Images(t.Context())
	if err != nil || len(images) != 1 || images[0].Missing != "" {
		t.Fatalf("the store has %+v, %v", images, err)
	}
	var buf bytes.Buffer
	if err := s.WriteArchive(t.Context(), &buf, images[0]); err != nil {
		return nil, err
	}
	parts := map[string]string{}
	for r := tar.NewReader(&buf); ; {
		h, err := r.Next()
		if err == io.EOF {
			return parts, nil
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		parts[h.Name] = string(data)
	}
}

func TestALayersTarIsMadeAgain(t *testing.T) {
	// The file below the link is that of another layer's directory to the kernel, and of this one's to the image.
	root, diff, plain := storeOf(t, entry{name: "file", body: "content"}, entry{name: "link", link: "/elsewhere"},
		entry{name: ".wh.gone"})
	if err := os.Remove(filepath.Join(diff, ".wh.gone")); err != nil {
		t.Fatal(err) // a whiteout is a device there, and no file
	}
	parts, err := archived(t, root)
	if err != nil {
		t.Fatal(err)
	}
	if got := parts["blobs/sha256/"+digest.FromBytes(plain).Encoded()]; got != string(plain) {
		t.Errorf("the layer has %d bytes, and had %d", len(got), len(plain))
	}
	if !strings.Contains(parts["index.json"], "example.com/a:1") {
		t.Errorf("the index is %s", parts["index.json"])
	}
}

// A layer's directory belongs to an image, and so do the names in the file that says how its tar is made.
func TestALayerLeadsNobodyOutOfItsDirectory(t *testing.T) {
	const secret = "of the host"
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, link := range map[string]string{
		"absolute": outside, "upwards": strings.Repeat("../", 40) + strings.TrimPrefix(outside, "/"),
	} {
		root, diff, _ := storeOf(t, entry{name: "file", body: secret})
		path := filepath.Join(diff, "file")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(link, path); err != nil {
			t.Fatal(err)
		}
		if parts, err := archived(t, root); err == nil {
			t.Errorf("%s: the archive has %v", what, parts)
		}
	}
}

func TestAChangedFileIsToldAndNotImported(t *testing.T) {
	for what, change := range map[string]func(path string) error{
		"other content": func(path string) error { return os.WriteFile(path, []byte("CONTENT"), 0o600) },
		"gone":          os.Remove,
		"a pipe": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return syscall.Mkfifo(path, 0o600)
		},
	} {
		root, diff, _ := storeOf(t, entry{name: "file", body: "content"})
		if err := change(filepath.Join(diff, "file")); err != nil {
			t.Fatal(err)
		}
		if _, err := archived(t, root); err == nil || !strings.Contains(err.Error(), "layer base") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAnImageThatIsNotWholeIsTold(t *testing.T) {
	for file, says := range map[string]string{
		"overlay-layers/base.tar-split.gz": "cannot be made again",
		"overlay-layers/layers.json":       "layer base is not in CRI-O's store",
		"overlay-images/one/manifest":      "manifest",
	} {
		root, _, _ := storeOf(t, entry{name: "file", body: "content"})
		if err := os.Remove(filepath.Join(root, file)); err != nil {
			t.Fatal(err)
		}
		s := &LayerStore{Roots: []string{root}}
		images, err := s.Images(t.Context())
		if err != nil || len(images) != 1 || !strings.Contains(images[0].Missing, says) {
			t.Errorf("without %s: %+v, %v", file, images, err)
		}
	}
	s := &LayerStore{Roots: []string{t.TempDir()}}
	if images, err := s.Images(t.Context()); err != nil || len(images) != 0 {
		t.Errorf("an empty directory has %v, %v", images, err)
	}
}
