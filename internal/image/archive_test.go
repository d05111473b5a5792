package image

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/gzip"

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
