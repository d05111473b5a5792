package export_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/opencontainers/go-digest"

	"berth/internal/image"
	"berth/internal/image/export"
	"berth/internal/image/layertar"
	"berth/internal/image/registry"
	"berth/internal/jail/jailtest"
	"berth/internal/jail/roles"
	rt "berth/internal/registrytest"
)

// node is a store that pulls from a registry of its own, with an Exporter.
type node struct {
	*image.Store
	*export.Exporter
	t     *testing.T
	root  string
	hosts string // of hosts.toml files
	reg   *rt.Registry
	// others are further registries, by their names.
	others   map[string]*rt.Registry
	children image.Children
}

func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeWith(t, registry.Retry{Backoff: 10 * time.Millisecond})
}

func newNodeWith(t *testing.T, retry registry.Retry) *node {
	t.Helper()
	reg, err := rt.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reg.Close() })
	hosts := t.TempDir()
	if err := reg.HostsDir(hosts, "registry.test"); err != nil {
		t.Fatal(err)
	}
	var children image.Children
	if os.Geteuid() != 0 {
		children = image.ChildrenOf(&jailtest.InProcess{Roles: roles.All()})
	} else {
		children = image.ChildrenOf(jailtest.Jail(t))
	}
	log := slog.New(slog.DiscardHandler)
	n := &node{t: t, reg: reg, root: t.TempDir(), hosts: hosts, others: map[string]*rt.Registry{}}
	n.Store, err = image.Open(context.Background(), image.Config{
		Children: children, Root: n.root, Logger: log, Settings: image.Settings{
			HostsDir: hosts, Retry: retry,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	n.children, n.Exporter = children, export.New(n.Store, children, log)
	return n
}

// pull pulls an image that is made for it, and returns its ID.
func (n *node) pull(ref string, opts ...rt.ImageOption) string {
	n.t.Helper()
	img, err := rt.Image(opts...)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.reg.Push(strings.TrimPrefix(ref, "registry.test/"), img); err != nil {
		n.t.Fatal(err)
	}
	got, err := n.Pull(context.Background(), image.PullRequest{Ref: ref})
	if err != nil {
		n.t.Fatal(err)
	}
	return got.ID
}

func (n *node) save(refs ...string) []byte {
	n.t.Helper()
	var out bytes.Buffer
	if err := n.Save(context.Background(), refs, &out); err != nil {
		n.t.Fatal(err)
	}
	return out.Bytes()
}

// read has another implementation read an archive and verify all digests, as a layout and as an archive of docker's.
func read(t *testing.T, data []byte) (images map[string]string) {
	t.Helper()
	dir := t.TempDir()
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	images = map[string]string{}
	for _, desc := range list.Manifests {
		img, err := index.Image(desc.Digest)
		if err != nil {
			t.Fatal(err)
		}
		ref := desc.Annotations["io.containerd.image.name"]
		images[ref] = verified(t, img)
		if ref == "" {
			continue
		}
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		opened := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		if img, err = tarball.Image(opened, &tag); err != nil {
			t.Fatal(err)
		}
		if id := verified(t, img); id != images[ref] {
			t.Errorf("%s is %s in the layout and %s in docker's archive", ref, images[ref], id)
		}
	}
	return images
}

// verified verifies the digests of an image: of the configuration and of its layers, which are not packed and so have
// their diff IDs for digests. It returns the image's ID.
func verified(t *testing.T, img v1.Image) string {
	t.Helper()
	raw, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	id, err := img.ConfigName()
	if err != nil || digest.FromBytes(raw).String() != id.String() {
		t.Fatalf("the configuration %s has another digest: %v", id, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != len(config.RootFS.DiffIDs) {
		t.Fatalf("%d layers for %d diff IDs: %v", len(layers), len(config.RootFS.DiffIDs), err)
	}
	for i, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		got, err := digest.FromReader(r)
		if err = errors.Join(err, r.Close()); err != nil || got.String() != config.RootFS.DiffIDs[i].String() {
			t.Fatalf("layer %d has digest %s, want %s: %v", i, got, config.RootFS.DiffIDs[i], err)
		}
	}
	return id.String()
}

func TestASavedImageIsTheSameElsewhere(t *testing.T) {
	n := newNode(t)
	shared := rt.Layer(rt.Random(1, "shared", 50, 40000)...)
	a := n.pull("registry.test/a:1", shared, rt.WithFiles(map[string]string{"etc/a": "a"}), rt.Cmd("a"),
		rt.Annotation("k", "v"))
	b := n.pull("registry.test/b:1", rt.Docker(), shared, rt.Layer(rt.Whiteout("shared/gone")),
		rt.Compressed(rt.Zstd))
	empty := n.pull("registry.test/empty:1")
	if _, err := n.Tag(context.Background(), a, "registry.test/a:2"); err != nil {
		t.Fatal(err)
	}
	n.reg.Close() // no network from here on
	data := n.save("registry.test/a:1", b, "registry.test/empty:1", a)
	want := map[string]string{
		"registry.test/a:1": a, "registry.test/a:2": a, "registry.test/b:1": b, "registry.test/empty:1": empty,
	}
	if got := read(t, data); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the archive has %v, want %v", got, want)
	}
	if again := n.save("registry.test/a:1", b, "registry.test/empty:1", a); !bytes.Equal(again, data) {
		t.Error("the same images make another archive")
	}
	second := newNode(t)
	if _, err := second.ImportArchive(context.Background(), bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	for ref, id := range want {
		if img, err := second.Get(context.Background(), ref); err != nil || img.ID != id {
			t.Errorf("%s is %+v elsewhere: %v", ref, img, err)
		}
	}
	if got := second.save("registry.test/a:1", b, "registry.test/empty:1", a); !bytes.Equal(got, data) {
		t.Error("an image that was loaded makes another archive")
	}
}

func TestAnImageHasTheNameThatItIsAskedForBy(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.WithFiles(map[string]string{"f": "x"}))
	if _, err := n.Tag(context.Background(), id, "registry.test/a:2"); err != nil {
		t.Fatal(err)
	}
	img, err := n.Get(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string][]string{
		"registry.test/a:2": {"registry.test/a:2"}, id: {"registry.test/a:1", "registry.test/a:2"},
		img.RepoDigests[0]: {""},
	} {
		got := read(t, n.save(ref))
		for _, name := range want {
			if got[name] != id || len(got) != len(want) {
				t.Errorf("saved as %s it has the names %v, want %v", ref, got, want)
			}
		}
	}
}

// A layer that puts files where lower layers have a link is kept as a variant, whose files are elsewhere.
func TestLayersThatDependOnOthersAreSavedAsTheyCame(t *testing.T) {
	n := newNode(t)
	below := rt.Layer(rt.Dir("usr", 0o755), rt.Dir("usr/bin", 0o711), rt.Symlink("bin", "usr/bin"), rt.Dir("etc", 0o700))
	above := rt.Layer(rt.File("bin/tool", 0o755, "tool"), rt.File("etc/conf", 0o600, "conf"))
	id := n.pull("registry.test/variant:1", below, above)
	infos, err := n.Layers(id)
	if err != nil {
		t.Fatal(err)
	}
	if info := infos[1]; filepath.Dir(info.Dir) == info.Origin {
		t.Fatalf("the layer is no variant: %+v", info)
	}
	want := n.save(id)
	read(t, want)
	before := entries(t, filepath.Join(n.root, "layers"))
	if err := n.Collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	if after := entries(t, filepath.Join(n.root, "layers")); !slices.Equal(before, after) {
		t.Errorf("layers were %v and are %v", before, after)
	}
	if err := n.Remove(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, filepath.Join(n.root, "layers")); !slices.Equal(left, []string{"0"}) {
		t.Errorf("the image has left %v", left)
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestAnImageThatCannotBeSavedIsNotBegun(t *testing.T) {
	n := newNode(t)
	good := n.pull("registry.test/good:1", rt.WithFiles(map[string]string{"f": "x"}))
	twice := n.pull("registry.test/twice:1", rt.Layer(rt.File("f", 0o644, "x"), rt.File("f", 0o644, "y")))
	old := n.pull("registry.test/old:1", rt.WithFiles(map[string]string{"old": "x"}))
	n.without(old, func(record string) error { return os.Remove(record) })
	spoilt := n.pull("registry.test/spoilt:1", rt.WithFiles(map[string]string{"spoilt": "x"}))
	n.without(spoilt, func(record string) error { return os.WriteFile(record, []byte("spoilt"), 0o600) })
	for _, c := range []struct {
		refs  []string
		is    error
		words []string
	}{
		{[]string{good, "registry.test/old:1"}, errdefs.ErrFailedPrecondition,
			[]string{"registry.test/old:1", "layer sha256:", "berth pull"}},
		{[]string{good, twice}, errdefs.ErrFailedPrecondition, []string{twice, "layer sha256:", "several entries"}},
		{[]string{spoilt}, errdefs.ErrFailedPrecondition, []string{"layer sha256:", "spoilt"}},
		{[]string{good, "registry.test/none:1"}, errdefs.ErrNotFound, []string{"registry.test/none:1"}},
		{nil, errdefs.ErrInvalidArgument, []string{"no image"}},
	} {
		var out bytes.Buffer
		err := n.Save(context.Background(), c.refs, &out)
		if !errors.Is(err, c.is) || out.Len() > 0 {
			t.Errorf("%v: %v, and %d bytes", c.refs, err, out.Len())
			continue
		}
		for _, word := range c.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v: %q is not in: %v", c.refs, word, err)
			}
		}
	}
}

// without does something to the record of the last layer of an image.
func (n *node) without(id string, do func(record string) error) {
	n.t.Helper()
	infos, err := n.Layers(id)
	if err == nil {
		err = do(filepath.Join(infos[len(infos)-1].Origin, layertar.FileName))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func TestALayerThatHasChangedIsNotPassedOff(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.WithFiles(map[string]string{"f": "right"}))
	infos, err := n.Layers(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"wrong", "shorter than that", ""} {
		if err := os.WriteFile(filepath.Join(infos[0].Dir, "f"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err = n.Save(context.Background(), []string{id}, io.Discard)
		if !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), infos[0].DiffID) {
			t.Errorf("with %q: %v", content, err)
		}
	}
}

// stopping is a writer that does something once, in the middle of a layer.
type stopping struct {
	bytes.Buffer
	after int
	do    func() error
	err   error
}

func (s *stopping) Write(p []byte) (int, error) {
	if s.do != nil && s.Len() > s.after {
		s.err, s.do = s.do(), nil
	}
	if s.err != nil {
		return 0, s.err
	}
	return s.Buffer.Write(p)
}

func TestAnImageThatIsRemovedMeanwhileIsSavedWhole(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.Layer(rt.Random(1, "r", 20, 6<<20)...),
		rt.WithFiles(map[string]string{"f": "x"}))
	out := &stopping{after: 3 << 20, do: func() error {
		return errors.Join(n.Remove(context.Background(), id), n.Collect(context.Background()))
	}}
	if err := n.Save(context.Background(), []string{"registry.test/a:1"}, out); err != nil {
		t.Fatal(err)
	}
	if out.do != nil {
		t.Fatal("the image was not removed meanwhile")
	}
	if got := read(t, out.Bytes()); got["registry.test/a:1"] != id {
		t.Errorf("%v", got)
	}
	if err := n.Close(); err != nil { // waits for the removal
		t.Fatal(err)
	}
	if left := entries(t, filepath.Join(n.root, "layers")); !slices.Equal(left, []string{"0"}) {
		t.Errorf("the image has left %v", left)
	}
}

func TestASaveEndsWithItsClient(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.Layer(rt.Random(1, "r", 20, 6<<20)...))
	gone := errors.New("the client has gone")
	err := n.Save(context.Background(), []string{id}, &stopping{after: 3 << 20, do: func() error { return gone }})
	if !errors.Is(err, gone) {
		t.Errorf("a writer that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	err = n.Save(ctx, []string{id}, &stopping{after: 3 << 20, do: func() error { cancel(); return nil }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ends: %v", err)
	}
	if err := n.Remove(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, filepath.Join(n.root, "layers")); !slices.Equal(left, []string{"0"}) {
		t.Errorf("a save that has ended keeps %v", left)
	}
}
