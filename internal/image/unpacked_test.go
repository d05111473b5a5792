package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"

	rt "berth/internal/registrytest"
)

// Some tools keep layers unpacked, and can tell the manifest that they pulled and the tars, but not the blobs between.
func TestALayoutWithTheTarsOfItsLayersIsImported(t *testing.T) {
	img := mustImage(t, rt.WithFiles(map[string]string{"etc/hello": "hi"}))
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(plain)
	if err != nil {
		t.Fatal(err)
	}
	diffID, err := layers[0].DiffID()
	if err != nil {
		t.Fatal(err)
	}
	target, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{map[string]any{
		"mediaType": types.OCIManifestSchema1, "digest": target.String(), "size": len(manifest),
		"annotations": map[string]string{"io.containerd.image.name": "berth.test/plain:1"},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	archive := func(layer []byte) io.Reader {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, f := range []struct {
			name string
			data []byte
		}{
			{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", index},
			{"blobs/sha256/" + target.Hex, manifest}, {"blobs/sha256/" + id.Hex, config},
			{"blobs/sha256/" + diffID.Hex, layer},
		} {
			if err := w.WriteHeader(&tar.Header{Name: f.name, Size: int64(len(f.data)), Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(f.data); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &buf
	}
	f := newFixture(t)
	spoilt := bytes.Replace(layer, []byte("hi"), []byte("ha"), 1)
	if list, err := f.ImportArchive(context.Background(), archive(spoilt)); err == nil {
		t.Errorf("a tar that is not the layer's is imported: %+v", list)
	}
	list, err := f.ImportArchive(context.Background(), archive(layer))
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].ID != id.String() || !slices.Equal(list[0].RepoTags, []string{"berth.test/plain:1"}) {
		t.Errorf("the image is %+v", list[0])
	}
}
