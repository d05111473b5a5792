package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	rt "berth/internal/registrytest"
)

func TestADockerArchiveIsImported(t *testing.T) {
	f := newFixture(t)
	img := mustImage(t, rt.Docker(), rt.WithFiles(map[string]string{"etc/hello": "hi"}), rt.Cmd("x"))
	var buf bytes.Buffer
	refs := map[name.Reference]v1.Image{}
	for _, n := range []string{"berth.test/loaded:1", "berth.test/loaded:2"} {
		tag, err := name.NewTag(n)
		if err != nil {
			t.Fatal(err)
		}
		refs[tag] = img
	}
	if err := tarball.MultiRefWrite(refs, &buf); err != nil {
		t.Fatal(err)
	}
	list, err := f.ImportArchive(context.Background(), &buf)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[1].ID != id(t, img) ||
		!slices.Equal(list[1].RepoTags, []string{"berth.test/loaded:1", "berth.test/loaded:2"}) {
		t.Errorf("%+v", list)
	}
	l, err := f.AddReference(list[0].ID, "t")
	if err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(filepath.Join(l.Dirs[0], "etc/hello")); string(data) != "hi" {
		t.Errorf("content %q", data)
	}
}

// TestATagThatStaysIsNotMovedByAnArchive, whether the image of the archive has another tag or none, and where the tag
// was given to the other image while the layers of the archive were loaded. What was imported is on the disk after
// Sync. It was seen to fail where an import did not ask about tags, where record did not, and where Sync did nothing.
func TestATagThatStaysIsNotMovedByAnArchive(t *testing.T) {
	f := newFixture(t)
	archived := mustImage(t, rt.WithFiles(map[string]string{"from": "archive"}))
	data := func(names ...string) *bytes.Reader {
		t.Helper()
		refs := map[name.Reference]v1.Image{}
		for _, n := range names {
			tag, err := name.NewTag(n)
			if err != nil {
				t.Fatal(err)
			}
			refs[tag] = archived
		}
		var buf bytes.Buffer
		if err := tarball.MultiRefWrite(refs, &buf); err != nil {
			t.Fatal(err)
		}
		return bytes.NewReader(buf.Bytes())
	}
	f.push("app:latest", files("pulled", "pulled"))
	pulled := f.pull("app:latest")
	latest, other := host+"app:latest", host+"app:1"
	has := func(tag, want string) {
		t.Helper()
		img, err := f.Get(t.Context(), tag)
		if want == "" && errdefs.IsNotFound(err) {
			return
		}
		if err != nil || img.ID != want {
			t.Errorf("%s is %+v, %v", tag, img, err)
		}
	}
	stay := func(tag, holder string) bool {
		if tag != latest || holder != pulled {
			t.Errorf("whether %s stays with %s", tag, holder)
		}
		return true
	}
	list, err := f.ImportArchiveKeeping(t.Context(), data(latest), stay)
	if err != nil || len(list) > 0 {
		t.Errorf("an archive with this tag alone: %v, %v", list, err)
	}
	has(id(t, archived), "")
	if _, err := f.ImportArchiveKeeping(t.Context(), data(latest, other), stay); err != nil {
		t.Error(err)
	}
	has(latest, pulled)
	has(other, id(t, archived))
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	if left := f.unsynced(); len(left) > 0 {
		t.Errorf("%d layers are not known to be on the disk", len(left))
	}
	asked := 0
	given := func(string, string) bool { asked++; return asked > 1 }
	if _, err := f.ImportArchiveKeeping(t.Context(), data(latest), given); err != nil || asked != 2 {
		t.Errorf("it was asked %d times: %v", asked, err)
	}
	has(latest, pulled)
	move := func(string, string) bool { return false }
	if _, err := f.ImportArchiveKeeping(t.Context(), data(latest), move); err != nil {
		t.Error(err)
	}
	has(latest, id(t, archived))
}

// TestAnImageWhoseIDIsOfAnotherHash is found and removed by it: the manifest says how its configuration is hashed.
// Seen to fail with IDs of SHA-256 alone: nobody could use or remove such an image by its ID, as a kubelet does.
func TestAnImageWhoseIDIsOfAnotherHash(t *testing.T) {
	for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA384, digest.SHA512} {
		f := newFixture(t)
		img := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}}
		img.RootFS.Type = "layers"
		var parts []archivePart
		add := func(by digest.Algorithm, mediaType string, v any) ocispec.Descriptor {
			raw, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			d := by.FromBytes(raw)
			parts = append(parts, archivePart{"blobs/" + by.String() + "/" + d.Encoded(), string(raw)})
			return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(raw))}
		}
		m := ocispec.Manifest{Layers: []ocispec.Descriptor{}, Config: add(algorithm, ocispec.MediaTypeImageConfig, img)}
		m.SchemaVersion = 2
		index := ocispec.Index{Manifests: []ocispec.Descriptor{add(digest.SHA256, ocispec.MediaTypeImageManifest, m)}}
		raw, err := json.Marshal(index)
		if err != nil {
			t.Fatal(err)
		}
		data := archiveOf(t, append(parts, archivePart{"index.json", string(raw)}, archivePart{"oci-layout", "{}"})...)
		list, err := f.ImportArchive(t.Context(), bytes.NewReader(data))
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %v, %v", algorithm, list, err)
		}
		id := m.Config.Digest.String()
		file := filepath.Join(f.cfg.Root, "records", imageFileID(id), "image.json")
		f.eventually("the image has a file of its own", func() bool { _, err := os.Lstat(file); return err == nil })
		f.reopen()
		if _, err := os.Lstat(file); err != nil {
			t.Errorf("%s: its own file after a start: %v", algorithm, err)
		}
		if got, err := f.Get(t.Context(), id); err != nil || got.ID != id {
			t.Errorf("%s: %v, %v", algorithm, got, err)
		}
		if _, err := f.AddReference(id, "holder"); err != nil {
			t.Error(err)
		}
		f.Release("holder")
		if err := f.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
		f.wantNothing()
	}
}

func TestAnOCILayoutIsImported(t *testing.T) {
	f := newFixture(t)
	img := mustImage(t, rt.WithFiles(map[string]string{"etc/hello": "hi"}), rt.Compressed(rt.Zstd))
	other := mustImage(t, rt.Platform("linux/s390x"))
	dir := t.TempDir()
	index, err := rt.Index(false, other, img)
	if err != nil {
		t.Fatal(err)
	}
	p, err := layout.Write(dir, index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img,
		layout.WithAnnotations(map[string]string{"io.containerd.image.name": "berth.test/oci:1"})); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	if err := tw.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	tw.Close()
	zw.Close()
	if _, err := f.ImportArchive(context.Background(), &buf); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Get(context.Background(), "berth.test/oci:1"); err != nil || got.ID != id(t, img) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestArchivesThatAreNone(t *testing.T) {
	f := newFixture(t)
	for what, data := range map[string][]byte{
		"noise":       []byte(strings.Repeat("noise ", 500)),
		"no manifest": mustTar(t, rt.File("a", 0o644, "a")),
		"missing layer": mustTar(t, rt.File("manifest.json", 0o644, `[{"Config":"c","Layers":["l"]}]`),
			rt.File("c", 0o644, "{}")),
		"loop":     mustTar(t, rt.Symlink("manifest.json", "manifest.json")),
		"bad json": mustTar(t, rt.File("index.json", 0o644, `{`)),
	} {
		_, err := f.ImportArchive(context.Background(), bytes.NewReader(data))
		wantErr(t, err, errdefs.ErrInvalidArgument, "import archive")
		if t.Failed() {
			t.Fatal(what)
		}
	}
	f.wantNothing()
	if left, _ := filepath.Glob(filepath.Join(f.cfg.Root, "import-*")); len(left) > 0 {
		t.Error(left)
	}
}
