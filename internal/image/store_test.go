package image

import (
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
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/image/registry"
	"berth/internal/image/source"
	"berth/internal/jail/jailtest"
	"berth/internal/jail/roles"
	rt "berth/internal/registrytest"
)

// quick are retries that do not make a test wait.
var quick = registry.Retry{Attempts: 3, Backoff: 5 * time.Millisecond, MaxBackoff: 1100 * time.Millisecond,
	Stall: 3 * time.Second}

// host is the name that all tests pull from.
const host = "registry.test/"

type fixture struct {
	*Store
	t    *testing.T
	cfg  Config
	reg  *rt.Registry
	logs *strings.Builder
	// built is the file that program has made; empty: none yet.
	built string
}

func newRegistry(t testing.TB, opts ...rt.Option) *rt.Registry {
	t.Helper()
	r, err := rt.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

type lockedWriter struct {
	io.Writer
	mu chan struct{}
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu <- struct{}{}
	defer func() { <-w.mu }()
	return w.Writer.Write(p)
}

// long leaves a test out of `make unit` that works for seconds, the more so with the race detector.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
}

// testChildren are confined processes, or goroutines of the test where it may not confine any.
func testChildren(t testing.TB) Children {
	if os.Geteuid() != 0 {
		return ChildrenOf(&jailtest.InProcess{Roles: roles.All()})
	}
	return ChildrenOf(jailtest.Jail(t))
}

// newFixture is a store that pulls from a registry of its own under registry.test.
func newFixture(t *testing.T, opts ...rt.Option) *fixture {
	t.Helper()
	f := &fixture{t: t, reg: newRegistry(t, opts...), logs: &strings.Builder{}}
	hosts := t.TempDir()
	if err := f.reg.HostsDir(hosts, "registry.test", "docker.io"); err != nil {
		t.Fatal(err)
	}
	f.cfg = Config{
		Children: testChildren(t), Root: t.TempDir(), Settings: Settings{HostsDir: hosts, Retry: quick},
		Logger: slog.New(slog.NewTextHandler(lockedWriter{f.logs, make(chan struct{}, 1)},
			&slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	f.open()
	t.Cleanup(func() { f.Close() })
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	s, err := Open(context.Background(), f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Store = s
}

func (f *fixture) reopen() {
	f.t.Helper()
	if err := f.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.open()
}

func mustImage(t testing.TB, opts ...rt.ImageOption) v1.Image {
	t.Helper()
	img, err := rt.Image(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func (f *fixture) push(name string, opts ...rt.ImageOption) v1.Image {
	f.t.Helper()
	img := mustImage(f.t, opts...)
	if err := f.reg.Push(name, img); err != nil {
		f.t.Fatal(err)
	}
	return img
}

func (f *fixture) pull(name string) string {
	f.t.Helper()
	img, err := f.Pull(context.Background(), PullRequest{Ref: host + name})
	if err != nil {
		f.t.Fatal(err)
	}
	return img.ID
}

// layerDirs are the names under layers, but for the empty one.
func (f *fixture) layerDirs() []string {
	f.t.Helper()
	entries, err := os.ReadDir(filepath.Join(f.cfg.Root, "layers"))
	if err != nil {
		f.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != emptyLayer {
			names = append(names, e.Name())
		}
	}
	return names
}

func (f *fixture) wantNothing() {
	f.t.Helper()
	if got := f.layerDirs(); len(got) > 0 {
		f.t.Errorf("layer directories left behind: %v", got)
	}
	if list, _ := f.List(context.Background()); len(list) > 0 {
		f.t.Errorf("images left behind: %v", list)
	}
}

// eventually waits for what happens in the background.
func (f *fixture) eventually(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("never: %s", what)
		}
	}
}

func wantErr(t testing.TB, err, sentinel error, words ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("error %v, want %v", err, sentinel)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func id(t testing.TB, img v1.Image) string {
	t.Helper()
	h, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func digestOf(t testing.TB, img interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func files(pairs ...string) rt.ImageOption {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return rt.WithFiles(m)
}

func TestAPulledImageIsFoundByEveryName(t *testing.T) {
	f := newFixture(t)
	img := f.push("library/busybox:1.36", files("bin/x", "x"), rt.Env("A=b"), rt.Cmd("/bin/x"), rt.Label("l", "v"))
	ctx := context.Background()
	got, err := f.Pull(ctx, PullRequest{Ref: "busybox:1.36"})
	if err != nil {
		t.Fatal(err)
	}
	want := id(t, img)
	if got.ID != want {
		t.Errorf("ID %s, want the digest of the configuration %s", got.ID, want)
	}
	if !slices.Equal(got.RepoTags, []string{"docker.io/library/busybox:1.36"}) ||
		!slices.Equal(got.RepoDigests, []string{"docker.io/library/busybox@" + digestOf(t, img)}) {
		t.Errorf("names %v %v", got.RepoTags, got.RepoDigests)
	}
	if got.Config.Env[0] != "A=b" || got.Config.Cmd[0] != "/bin/x" || got.Config.Labels["l"] != "v" || got.Size == 0 ||
		len(got.Layers) != 1 {
		t.Errorf("image %+v", got)
	}
	names := []string{"busybox:1.36", "docker.io/busybox:1.36", "docker.io/library/busybox:1.36", got.RepoDigests[0],
		"busybox@" + digestOf(t, img), want, strings.TrimPrefix(want, "sha256:"), want[:20], want[7:15]}
	for range 2 {
		for _, n := range names {
			if g, err := f.Get(ctx, n); err != nil || g.ID != want {
				t.Errorf("get %s: %v, %v", n, g, err)
			}
		}
		f.reopen()
	}
	for _, n := range []string{"busybox", "busybox:1.37", "sha256:" + strings.Repeat("0", 64),
		"00000000000", "nothing/like:it"} {
		if _, err := f.Get(ctx, n); !errdefs.IsNotFound(err) {
			t.Errorf("get %s: %v", n, err)
		}
	}
	for _, n := range []string{"", "UPPER", "a b", "x:"} {
		if _, err := f.Get(ctx, n); !errdefs.IsInvalidArgument(err) {
			t.Errorf("get %q: %v", n, err)
		}
		if _, err := f.Pull(ctx, PullRequest{Ref: n}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("pull %q: %v", n, err)
		}
	}
	config, err := f.ConfigJSON(want)
	raw, _ := img.RawConfigFile()
	if err != nil || string(config) != string(raw) {
		t.Errorf("configuration %s, %v", config, err)
	}
	manifest, err := f.Manifest(want)
	raw, _ = img.RawManifest()
	if err != nil || string(manifest) != string(raw) {
		t.Errorf("manifest %s, %v", manifest, err)
	}
}

// TestLongConfigurationsAreNotInMemory, of which each image may have a megabyte, and whoever runs pods any number of
// images. They are all there when asked for, after each change of a record too, and after a database that was lost.
// Seen to fail with all of each configuration in memory, and with a change that writes the record as it is in memory.
func TestLongConfigurationsAreNotInMemory(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	long := strings.Repeat("x", 900<<10)
	f.push("long:1", files("a", "b"), rt.Env("A="+long), rt.Cmd("/bin/x"), rt.Label("l", "v"), rt.User("7"))
	f.push("short:1", files("a", "b"), rt.Env("A=b"), rt.User("7"))
	f.pull("short:1")
	id := f.pull("long:1")
	check := func(when string) {
		t.Helper()
		got, err := f.Get(ctx, id)
		if err != nil || got.Config.Env[0] != "A="+long || got.Config.Cmd[0] != "/bin/x" || got.Config.Labels["l"] != "v" ||
			got.Config.User != "7" || got.Partial {
			t.Errorf("%s: the image is not as it was pulled (%v)", when, err)
		}
		list, err := f.List(ctx)
		if err != nil || len(list) != 2 {
			t.Fatalf("%s: %d images, %v", when, len(list), err)
		}
		for _, img := range list {
			if is := img.ID == id; img.Partial != is || is == (len(img.Config.Env) > 0) || img.Config.User != "7" {
				t.Errorf("%s: in the list: %.200q", when, fmt.Sprint(img))
			}
		}
		f.index.mu.Lock()
		defer f.index.mu.Unlock()
		for _, r := range f.index.images {
			if size := source.ConfigText(&r.Config); size > heldConfig {
				t.Errorf("%s: %d bytes are in memory", when, size)
			}
		}
	}
	check("pulled")
	if got, err := f.Pull(ctx, PullRequest{Ref: host + "long:1"}); err != nil || got.Config.Env[0] != "A="+long {
		t.Errorf("pulled again: %v", err)
	}
	check("pulled again")
	f.reopen()
	check("opened again")
	for _, pinned := range []bool{true, false} {
		if err := f.Pin(ctx, id, pinned); err != nil {
			t.Fatal(err)
		}
	}
	f.reopen()
	check("pinned")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(f.cfg.Root, "images.db")); err != nil {
		t.Fatal(err)
	}
	f.open()
	check("made anew")
}
