package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/model"
	rt "berth/internal/registrytest"
)

func TestEveryKindOfImageIsUnpackedTheSame(t *testing.T) {
	f := newFixture(t)
	for _, c := range []rt.Compression{rt.Gzip, rt.Zstd, rt.Uncompressed} {
		for _, docker := range []bool{false, true} {
			name := fmt.Sprintf("kinds:%s-%v", c, docker)
			opts := []rt.ImageOption{rt.Compressed(c), files("etc/hello", name)}
			if docker {
				opts = append(opts, rt.Docker())
			}
			want := id(t, f.push(name, opts...))
			if got := f.pull(name); got != want {
				t.Errorf("%s: ID %s, want %s", name, got, want)
			}
			l, err := f.AddReference(want, "test")
			if err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(filepath.Join(l.Dirs[0], "etc/hello")); err != nil || string(data) != name {
				t.Errorf("%s: %q, %v", name, data, err)
			}
		}
	}
}

// TestAnIndexIsBelievedAboutThePlatform, and not the configuration: some images were built with that of another
// platform. containerd 2.2 did not unpack them, and said that they were there.
func TestAnIndexIsBelievedAboutThePlatform(t *testing.T) {
	f := newFixture(t)
	other := "linux/arm64"
	if runtime.GOARCH == "arm64" {
		other = "linux/amd64"
	}
	img := f.push("multi:other", rt.Platform(other), files("a", "b"))
	size, err := img.Size()
	if err != nil {
		t.Fatal(err)
	}
	f.putManifest("multi:1", ocispec.MediaTypeImageIndex, fmt.Appendf(nil,
		`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,"platform":{"os":"linux",`+
			`"architecture":%q}}]}`,
		ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, digestOf(t, img), size, runtime.GOARCH))
	if got := f.pull("multi:1"); got != id(t, img) {
		t.Errorf("the image is %s", got)
	}
	_, err = f.Pull(context.Background(), PullRequest{Ref: host + "multi:other"})
	wantErr(t, err, errdefs.ErrNotFound, other)
}

func TestAnIndexYieldsThePlatformOfTheNode(t *testing.T) {
	f := newFixture(t)
	amd := mustImage(t, rt.Platform("linux/amd64"), files("arch", "amd64"))
	arm7 := mustImage(t, rt.Platform("linux/arm/v7"), files("arch", "arm"))
	arm64 := mustImage(t, rt.Platform("linux/arm64/v8"), files("arch", "arm64"))
	for _, docker := range []bool{false, true} {
		index, err := rt.Index(docker, arm7, arm64, amd)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.reg.Push("multi:1", index); err != nil {
			t.Fatal(err)
		}
		for platform, want := range map[string]string{"linux/amd64": id(t, amd), "linux/arm64": id(t, arm64),
			"linux/arm/v8": id(t, arm7)} {
			cfg := f.cfg
			cfg.Root, cfg.Platform = t.TempDir(), platform
			s, err := Open(context.Background(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			img, err := s.Pull(context.Background(), PullRequest{Ref: host + "multi:1"})
			if err != nil {
				t.Fatal(err)
			}
			if img.ID != want {
				t.Errorf("%s: %s, want %s", platform, img.ID, want)
			}
			if d := host + "multi@" + digestOf(t, index); !slices.Equal(img.RepoDigests, []string{d}) {
				t.Errorf("repo digests %v, want that of the index, %s", img.RepoDigests, d)
			}
			s.Close()
		}
	}
	index, _ := rt.Index(false, arm7, arm64)
	if err := f.reg.Push("multi:2", index); err != nil {
		t.Fatal(err)
	}
	_, err := f.Pull(context.Background(), PullRequest{Ref: host + "multi:2"})
	wantErr(t, err, errdefs.ErrNotFound, "linux/arm64", "linux/amd64")
	if err := f.reg.Push("single:1", arm64); err != nil {
		t.Fatal(err)
	}
	_, err = f.Pull(context.Background(), PullRequest{Ref: host + "single:1"})
	wantErr(t, err, errdefs.ErrNotFound, "linux/arm64", "linux/amd64")
	f.wantNothing()
}

// TestEachPullTellsWhenItWas: of an image that is there already, too.
func TestEachPullTellsWhenItWas(t *testing.T) {
	f := newFixture(t)
	f.push("a:1", files("a", "a"))
	var before time.Time
	for range 2 {
		id := f.pull("a:1")
		for range 2 {
			img, err := f.Get(context.Background(), id)
			if err != nil {
				t.Fatal(err)
			}
			if !img.Pulled.After(before) || img.PullTook <= 0 || img.PullTook > time.Since(before) {
				t.Errorf("pulled at %v, which took %v; the pull before ended at %v", img.Pulled, img.PullTook, before)
			}
			f.reopen()
		}
		before = time.Now()
	}
}

func TestAMovedTagLeavesTheOldImageByItsDigest(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	old := f.push("app:latest", files("v", "1"))
	oldID := f.pull("app")
	f.push("app:latest", files("v", "2"))
	newID := f.pull("app")
	for range 2 {
		was, err := f.Get(ctx, oldID)
		if err != nil || len(was.RepoTags) != 0 ||
			!slices.Equal(was.RepoDigests, []string{host + "app@" + digestOf(t, old)}) {
			t.Errorf("old image %+v, %v", was, err)
		}
		if is, err := f.Get(ctx, host+"app"); err != nil || is.ID != newID {
			t.Errorf("tag is %+v, %v", is, err)
		}
		f.reopen()
	}
	if got := f.pull("app@" + digestOf(t, old)); got != oldID {
		t.Errorf("by digest: %s", got)
	}
	if got := f.pull("app:latest@" + digestOf(t, old)); got != oldID {
		t.Errorf("by tag and digest: %s", got)
	}
	if is, _ := f.Get(ctx, host+"app"); is.ID != newID {
		t.Error("a pull by digest moved the tag")
	}
}

func TestOneImageWithManyTagsIsListedOnce(t *testing.T) {
	f := newFixture(t)
	img := f.push("tags:3", files("a", "b"))
	for _, tag := range []string{"1", "2"} {
		if err := f.reg.Push("tags:"+tag, img); err != nil {
			t.Fatal(err)
		}
	}
	for _, tag := range []string{"3", "1", "2"} {
		f.pull("tags:" + tag)
	}
	f.push("another:1", files("c", "d"))
	f.pull("another:1")
	list, _ := f.List(context.Background())
	if len(list) != 2 || list[0].RepoTags[0] != host+"another:1" ||
		!slices.Equal(list[1].RepoTags, []string{host + "tags:1", host + "tags:2", host + "tags:3"}) {
		t.Errorf("list %+v", list)
	}
	if err := f.Remove(context.Background(), host+"tags:2"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Get(context.Background(), host+"tags:1"); !errdefs.IsNotFound(err) {
		t.Errorf("the image is still there: %v", err)
	}
}

func TestAnAmbiguousStartOfAnIDIsRefused(t *testing.T) {
	f := newFixture(t)
	seen := map[byte]bool{}
	for i := 0; ; i++ {
		name := fmt.Sprintf("n:%d", i)
		img := f.push(name, rt.Label("n", fmt.Sprint(i)))
		f.pull(name)
		c := id(t, img)[len("sha256:")]
		if seen[c] {
			_, err := f.Get(context.Background(), string(c))
			wantErr(t, err, errdefs.ErrInvalidArgument, "more than one")
			return
		}
		seen[c] = true
	}
}

func TestLayersInCommonAreStoredAndLoadedOnce(t *testing.T) {
	f := newFixture(t)
	base, err := rt.NewLayer(mustTar(t, rt.Files(map[string]string{"base": strings.Repeat("b", 1000)})...), rt.Gzip, false)
	if err != nil {
		t.Fatal(err)
	}
	a := f.push("a:1", rt.ReadyLayer(base), files("a", "a"))
	f.push("b:1", rt.ReadyLayer(base), files("b", "b"))
	// The same content packed in another way is the same layer.
	f.push("c:1", rt.RawLayer(mustTar(t, rt.Files(map[string]string{"base": strings.Repeat("b", 1000)})...)),
		rt.Compressed(rt.Zstd), files("c", "c"))
	for _, n := range []string{"a:1", "b:1", "c:1"} {
		f.pull(n)
	}
	if n := len(f.layerDirs()); n != 4 {
		t.Errorf("%d layer directories, want 4: one in common and three", n)
	}
	ctx := context.Background()
	digest := digestOf(t, base)
	if sent := f.reg.Sent(digest); sent > 2000 {
		t.Errorf("the layer in common was sent %d bytes", sent)
	}
	before, _ := f.Usage(ctx)
	if err := f.Remove(ctx, host+"a:1"); err != nil {
		t.Fatal(err)
	}
	if n := len(f.layerDirs()); n != 3 {
		t.Errorf("%d layer directories after one removal, want 3", n)
	}
	if after, _ := f.Usage(ctx); after.UsedBytes >= before.UsedBytes || after.InodesUsed >= before.InodesUsed ||
		after.Mountpoint == "" {
		t.Errorf("usage %+v, before %+v", after, before)
	}
	for _, ref := range []string{host + "b:1", host + "c:1", id(t, a), host + "b:1", "none"} {
		if err := f.Remove(ctx, ref); err != nil {
			t.Error(ref, err)
		}
	}
	f.wantNothing()
}

func mustTar(t testing.TB, entries ...rt.Entry) []byte {
	t.Helper()
	data, err := rt.Tar(entries...)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestConcurrentPullsShareTheWork(t *testing.T) {
	f := newFixture(t)
	// Layers that two different images have in common, on a slow line.
	common, err := rt.NewLayer(mustTar(t, rt.Random(1, "common", 3, 200<<10)...), rt.Uncompressed, false)
	if err != nil {
		t.Fatal(err)
	}
	f.push("a:1", rt.ReadyLayer(common), files("a", "a"))
	f.push("b:1", rt.ReadyLayer(common), files("b", "b"))
	f.reg.SetFaults(rt.Faults{BytesPerSecond: 256 << 10})
	var wg sync.WaitGroup
	ctx := context.Background()
	// Callers who give up, the first of all among them, stop nobody else.
	const impatient = 4
	giveUp, cancel := context.WithCancel(ctx)
	defer cancel()
	for range impatient {
		wg.Go(func() {
			if _, err := f.Pull(giveUp, PullRequest{Ref: host + "a:1"}); !errors.Is(err, context.Canceled) {
				t.Errorf("a pull that was given up: %v", err)
			}
		})
	}
	diffID, err := common.DiffID()
	if err != nil {
		t.Fatal(err)
	}
	waiters := func() int {
		f.index.mu.Lock()
		defer f.index.mu.Unlock()
		waiters := 0
		for key, j := range f.index.jobs {
			if key.diffID.String() == diffID.String() {
				waiters += j.waiters
			}
		}
		return waiters
	}
	f.eventually("the impatient wait for the layer", func() bool { return waiters() == impatient })
	for i := range 16 {
		wg.Go(func() {
			if _, err := f.Pull(ctx, PullRequest{Ref: host + []string{"a:1", "b:1"}[i%2]}); err != nil {
				t.Error(err)
			}
		})
	}
	f.eventually("somebody else waits for it", func() bool { return waiters() > impatient })
	cancel()
	wg.Wait()
	size, _ := common.Size()
	if sent := f.reg.Sent(digestOf(t, common)); sent != size {
		t.Errorf("%d bytes sent of a layer of %d", sent, size)
	}
	if n := len(f.layerDirs()); n != 3 {
		t.Errorf("%d layer directories, want 3", n)
	}
}

// TestARecordHasNothingOfALayersDescriptorButItsPlace: annotations and data may have megabytes.
// Seen to fail with descriptors kept whole.
func TestARecordHasNothingOfALayersDescriptorButItsPlace(t *testing.T) {
	f := newFixture(t)
	sound := f.push("sound:1", files("a", "a"))
	raw, err := sound.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	layer := &manifest.Layers[0]
	want := *layer
	layer.Annotations, layer.Data = map[string]string{"a": strings.Repeat("x", 1<<20)}, make([]byte, 1<<20)
	layer.URLs = []string{"https://elsewhere.test/" + strings.Repeat("x", 1<<20)}
	if raw, err = json.Marshal(manifest); err != nil {
		t.Fatal(err)
	}
	f.reg.PutRaw("sound", "2", ocispec.MediaTypeImageManifest, raw)
	r := f.index.image(f.pull("sound:2"))
	if len(r.Blobs) != 1 || !reflect.DeepEqual(r.Blobs[0], want) {
		t.Errorf("%.300v", r.Blobs)
	}
}

// TestNoPullWaitsForAnImageThatOnlyNamesItsLayer: anybody can write a layer of a popular image into a configuration,
// and send a blob for it byte by byte. Seen to fail where pulls shared what a layer unpacks to, from wherever it came.
func TestNoPullWaitsForAnImageThatOnlyNamesItsLayer(t *testing.T) {
	f := newFixture(t)
	evil := newRegistry(t)
	if err := evil.HostsDir(f.cfg.HostsDir, "evil.test"); err != nil {
		t.Fatal(err)
	}
	sound := f.push("sound:1", rt.Layer(rt.Random(1, "common", 3, 200<<10)...), rt.Compressed(rt.Uncompressed))
	if err := evil.Push("sound:1", sound); err != nil {
		t.Fatal(err)
	}
	// The same configuration with another blob.
	junk := f.reg.PutBlob(bytes.Repeat([]byte("junk"), 1<<20))
	raw, err := sound.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	manifest.Layers[0].Digest, manifest.Layers[0].Size = digest.Digest(junk), 4<<20
	if raw, err = json.Marshal(manifest); err != nil {
		t.Fatal(err)
	}
	f.reg.PutRaw("evil", "1", ocispec.MediaTypeImageManifest, raw)
	for name, reg := range map[string]*rt.Registry{"evil.test/sound:1": evil, host + "evil:1": f.reg} {
		t.Run(name, func(t *testing.T) {
			blob := digestOf(t, mustLayer(t, sound))
			if reg == f.reg {
				blob = junk
			}
			reg.SetFaults(rt.Faults{BytesPerSecond: 6 << 10, Path: "/blobs/" + blob})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := f.Pull(ctx, PullRequest{Ref: name})
				done <- err
			}()
			f.eventually("the blob is on its way", func() bool { return reg.Sent(blob) > 0 })
			bound, stop := context.WithTimeout(ctx, time.Minute) // the other one takes longer
			defer stop()
			if _, err := f.Pull(bound, PullRequest{Ref: host + "sound:1"}); err != nil {
				t.Errorf("the sound image waits for the other one: %v", err)
			}
			cancel()
			<-done
			if err := f.Remove(t.Context(), host+"sound:1"); err != nil {
				t.Fatal(err)
			}
		})
	}
	f.wantNothing()
}

func mustLayer(t *testing.T, img v1.Image) v1.Layer {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	return layers[0]
}

func TestALayerOfACancelledPullLeavesNothing(t *testing.T) {
	f := newFixture(t)
	f.push("slow:1", rt.Layer(rt.Random(1, "d", 3, 1<<20)...))
	f.reg.SetFaults(rt.Faults{BytesPerSecond: 100 << 10})
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	start := time.Now()
	_, err := f.Pull(ctx, PullRequest{Ref: host + "slow:1"})
	wantErr(t, err, context.Canceled)
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %v to give up", d)
	}
	f.wantNothing()
}

func TestProgressIsToldForEachLayer(t *testing.T) {
	f := newFixture(t)
	f.push("p:1", rt.Layer(rt.Random(1, "d", 3, 300<<10)...), files("small", "x"))
	f.reg.SetFaults(rt.Faults{BytesPerSecond: 200 << 10})
	last := map[string]model.PullProgress{}
	n := 0
	_, err := f.Pull(context.Background(), PullRequest{Ref: host + "p:1", Progress: func(p model.PullProgress) {
		if was := last[p.Layer]; p.Done < was.Done || p.Done > p.Total {
			t.Errorf("progress %+v after %+v", p, was)
		}
		last[p.Layer] = p
		n++
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(last) != 2 || n < 5 {
		t.Errorf("%d reports of %d layers", n, len(last))
	}
	for _, p := range last {
		if p.Phase != model.PullDone || p.Done != p.Total || p.Total == 0 {
			t.Errorf("last word %+v", p)
		}
	}
}

func TestEmptyAndRepeatedLayersStack(t *testing.T) {
	f := newFixture(t)
	empty := rt.Layer()
	same := files("same", "x")
	f.push("scratch:1")
	f.push("empty:1", empty, empty)
	f.push("mixed:1", empty, same, files("same", "y"), empty, same)
	dirs := func(name string) []string {
		l, err := f.AddReference(f.pull(name), "test")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range l.Dirs {
			if info, err := os.Stat(d); err != nil || !info.IsDir() || info.Mode().Perm() != 0o755 {
				t.Errorf("%s: %v %v", name, info, err)
			}
		}
		return l.Dirs
	}
	if d := dirs("scratch:1"); len(d) != 1 {
		t.Error("scratch:", d)
	}
	if d := dirs("empty:1"); len(d) != 1 {
		t.Error("empty:", d)
	}
	d := dirs("mixed:1")
	if len(d) != 2 {
		t.Fatal("mixed:", d)
	}
	if data, _ := os.ReadFile(filepath.Join(d[0], "same")); string(data) != "x" {
		t.Errorf("on top is %q", data)
	}
}

func TestPinnedImagesAreMarked(t *testing.T) {
	f := newFixture(t)
	f.cfg.PinnedImages = []string{host + "pause:*", "*/exact:1"}
	f.reopen()
	for name, want := range map[string]bool{"pause:3.9": true, "exact:1": true, "other:1": false, "exact:2": false} {
		f.push(name, rt.Label("n", name))
		f.pull(name)
		if img, _ := f.Get(context.Background(), host+name); img.Pinned != want {
			t.Errorf("%s pinned: %v", name, img.Pinned)
		}
	}
}

func TestCredentialsOfEveryKindAreTaken(t *testing.T) {
	basic := rt.WithBasicAuth("user", "hunter2:with:colons")
	tokens := rt.WithTokenAuth("user", "hunter2:with:colons", "refresh-me")
	const encoded = "dXNlcjpodW50ZXIyOndpdGg6Y29sb25z"
	password := model.Auth{Username: "user", Password: "hunter2:with:colons"}
	for _, c := range []struct {
		name string
		opt  rt.Option
		auth *model.Auth
		want error
	}{
		{"basic, password", basic, &password, nil},
		{"basic, auth", basic, &model.Auth{Auth: encoded}, nil},
		{"basic, none", basic, nil, errdefs.ErrUnauthenticated},
		{"basic, empty", basic, &model.Auth{}, errdefs.ErrUnauthenticated},
		{"basic, wrong", basic, &model.Auth{Username: "user", Password: "hunter3"}, errdefs.ErrUnauthenticated},
		{"token, password", tokens, &password, nil},
		{"token, auth", tokens, &model.Auth{Auth: encoded}, nil},
		{"token, wrong", tokens, &model.Auth{Username: "user", Password: "hunter3"}, errdefs.ErrUnauthenticated},
		{"token, none", tokens, nil, errdefs.ErrUnauthenticated},
		{"identity token", tokens, &model.Auth{IdentityToken: "refresh-me"}, nil},
		{"identity token, wrong", tokens, &model.Auth{IdentityToken: "hunter3"}, errdefs.ErrUnauthenticated},
		{"identity token of a user", tokens, &model.Auth{Username: "user", IdentityToken: "refresh-me"}, nil},
		{"auth of a user", tokens, &model.Auth{Username: "user", Auth: encoded}, nil},
		{"a user alone", tokens, &model.Auth{Username: "user"}, errdefs.ErrUnauthenticated},
		{"registry token of a user", rt.WithRegistryToken("bear"), &model.Auth{Username: "user", RegistryToken: "bear"}, nil},
		{"registry token", rt.WithRegistryToken("bear"), &model.Auth{RegistryToken: "bear"}, nil},
		{"registry token, wrong", rt.WithRegistryToken("bear"), &model.Auth{RegistryToken: "hunter3"},
			errdefs.ErrUnauthenticated},
		{"for this server", basic, &model.Auth{Username: "user", Password: "hunter2:with:colons",
			ServerAddress: "https://registry.test/v1/"}, nil},
		{"for another server", basic, &model.Auth{Username: "user", Password: "hunter2:with:colons",
			ServerAddress: "other.test"}, errdefs.ErrUnauthenticated},
		{"not base64", basic, &model.Auth{Auth: "hunter3!"}, errdefs.ErrInvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, c.opt)
			f.push("private:1", files("a", "b"))
			_, err := f.Pull(context.Background(), PullRequest{Ref: host + "private:1", Auth: c.auth})
			if c.want == nil && err != nil {
				t.Error(err)
			} else if c.want != nil {
				wantErr(t, err, c.want)
				f.wantNothing()
			}
			f.Close()
			for _, secret := range []string{"hunter", encoded, "refresh-me", "bear\""} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the error tells a secret: %v", err)
				}
				if strings.Contains(f.logs.String(), secret) {
					t.Errorf("the log tells a secret: %s", f.logs)
				}
			}
		})
	}
}

// TestWhatIsRefusedIsNotSentAgain: a registry may lock an account after few wrong passwords. Seen to fail
// without the comparison in AddResponses (a wrong password: 5 requests, 4 of them with it), without tokenService (3
// and 2), without forbiddenError and without refusal.
func TestWhatIsRefusedIsNotSentAgain(t *testing.T) {
	basic, tokens := rt.WithBasicAuth("user", "right"), rt.WithTokenAuth("user", "right", "refresh-me")
	for _, c := range []struct {
		name           string
		opt            rt.Option
		status         int
		auth           model.Auth
		requests, with int // of them with a secret, those to the token service included
	}{
		{"basic, password", basic, 0, model.Auth{Username: "user", Password: "wrong"}, 2, 1},
		{"basic, none", basic, 0, model.Auth{}, 1, 0},
		{"token, password", tokens, 0, model.Auth{Username: "user", Password: "wrong"}, 2, 1},
		{"token, identity token", tokens, 0, model.Auth{IdentityToken: "wrong"}, 2, 1},
		{"token, none", tokens, 0, model.Auth{}, 2, 0},
		{"registry token", rt.WithRegistryToken("right"), 0, model.Auth{RegistryToken: "wrong"}, 1, 1},
		{"another's image", basic, 403, model.Auth{Username: "user", Password: "right"}, 2, 0}, // the second for the reason
		{"always 401", basic, 401, model.Auth{Username: "user", Password: "right"}, 1, 0},
	} {
		for _, byDigest := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, by digest %t", c.name, byDigest), func(t *testing.T) {
				f := newFixture(t, c.opt)
				img, ref := f.push("private:1", files("a", "b")), host+"private:1"
				if byDigest {
					digest, err := img.Digest()
					if err != nil {
						t.Fatal(err)
					}
					ref = host + "private@" + digest.String()
				}
				if c.status != 0 {
					f.reg.SetFaults(rt.Faults{Status: c.status})
				}
				_, err := f.Pull(context.Background(), PullRequest{Ref: ref, Auth: &c.auth})
				if c.status == 403 {
					wantErr(t, err, errdefs.ErrPermissionDenied)
				} else {
					wantErr(t, err, errdefs.ErrUnauthenticated)
				}
				all := append(f.reg.Requests(), f.reg.TokenRequests()...)
				with := 0
				for _, r := range all {
					if r.HasCredentials || r.Form.Has("password") || r.Form.Has("refresh_token") {
						with++
					}
				}
				if len(all) != c.requests || with != c.with {
					t.Errorf("%d requests, %d with a secret, want %d and %d: %+v", len(all), with, c.requests, c.with, all)
				}
			})
		}
	}
}

// Seen to fail where each p of an error and of a log line was replaced.
func TestAPasswordOfOneLetterLeavesTheErrorWhole(t *testing.T) {
	for name, opt := range map[string]rt.Option{"basic": rt.WithBasicAuth("user", "right"),
		"token": rt.WithTokenAuth("user", "right", "")} {
		f := newFixture(t, opt)
		f.push("private:1", files("a", "b"))
		_, err := f.Pull(context.Background(),
			PullRequest{Ref: host + "private:1", Auth: &model.Auth{Username: "user", Password: "p"}})
		wantErr(t, err, errdefs.ErrUnauthenticated)
		f.Close()
		for _, text := range []string{err.Error(), f.logs.String()} {
			if whole := strings.ReplaceAll(text, "/token?…", ""); strings.Contains(whole, "…") ||
				strings.Contains(whole, "left out") ||
				!strings.Contains(whole, "private:1") {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
}

// TestAForbiddenImageIsPermissionDenied with the registry's reason, for which it is asked once more: the answer to a
// HEAD has no body. Seen to fail without transport.reason.
func TestAForbiddenImageIsPermissionDenied(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults rt.Faults
		want   []string
	}{
		{"with a reason", rt.Faults{Status: 403, Message: "no access from \x1b[2J192.0.2.7"},
			[]string{"403 Forbidden (UNKNOWN: no access from ?[2J192.0.2.7)"}},
	} {
		for _, byDigest := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, by digest %t", c.name, byDigest), func(t *testing.T) {
				f := newFixture(t)
				name := "a:1"
				if img := f.push(name, files("a", "b")); byDigest {
					name = "a@" + digestOf(t, img)
				}
				f.reg.SetFaults(c.faults)
				_, err := f.Pull(context.Background(), PullRequest{Ref: host + name})
				wantErr(t, err, errdefs.ErrPermissionDenied, c.want...)
				var methods []string
				for _, r := range f.reg.Requests() {
					methods = append(methods, r.Method)
				}
				if !slices.Equal(methods, []string{"HEAD", "GET"}) {
					t.Errorf("requests %v", methods)
				}
			})
		}
	}
}

func TestCredentialsForAnotherHostAreNotSent(t *testing.T) {
	f := newFixture(t, rt.WithBasicAuth("user", "pass"))
	f.push("a:1", files("a", "b"))
	_, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1",
		Auth: &model.Auth{Username: "user", Password: "pass", ServerAddress: "elsewhere.test"}})
	wantErr(t, err, errdefs.ErrUnauthenticated)
	for _, r := range f.reg.Requests() {
		if r.HasCredentials {
			t.Errorf("credentials were sent: %+v", r)
		}
	}
}

// TestNewAuthoritiesOfTheNodeAreBelieved without a start of berthd, as after update-ca-certificates: of a host with and
// without a ca of its own in hosts.toml. They were those of the first pull.
func TestNewAuthoritiesOfTheNodeAreBelieved(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "ca-certificates.crt")
	t.Setenv("SSL_CERT_FILE", bundle)
	t.Setenv("SSL_CERT_DIR", t.TempDir())
	other := newRegistry(t, rt.WithTLS())
	if err := os.WriteFile(bundle, other.CertPEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, rt.WithTLS())
	f.push("a:1", files("a", "b"))
	hosts := filepath.Join(f.cfg.HostsDir, "registry.test")
	if err := os.WriteFile(filepath.Join(hosts, "other.pem"), other.CertPEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, ca := range []string{"", "ca = \"other.pem\"\n"} {
		text := fmt.Sprintf("server = %q\n%s", f.reg.URL(), ca)
		if err := errors.Join(os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(text), 0o644),
			os.WriteFile(bundle, other.CertPEM(), 0o644)); err != nil {
			t.Fatal(err)
		}
		_, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1"})
		wantErr(t, err, errdefs.ErrFailedPrecondition, "unknown authority")
		if err := os.WriteFile(bundle, slices.Concat(other.CertPEM(), f.reg.CertPEM()), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := f.Remove(context.Background(), f.pull("a:1")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTLSNeedsTheConfiguredAuthority(t *testing.T) {
	f := newFixture(t, rt.WithTLS())
	f.push("a:1", files("a", "b"))
	f.pull("a:1")

	cfg := f.cfg
	cfg.Root, cfg.HostsDir = t.TempDir(), t.TempDir()
	at := filepath.Join(cfg.HostsDir, "registry.test")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at, "hosts.toml"), []byte(fmt.Sprintf("server = %q\n", f.reg.URL())),
		0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.Pull(context.Background(), PullRequest{Ref: host + "a:1"})
	wantErr(t, err, errdefs.ErrFailedPrecondition, "certificate")
}

func TestLocalhostIsAskedOverPlainHTTP(t *testing.T) {
	f := newFixture(t)
	img := f.push("a:1", files("a", "b"))
	got, err := f.Pull(context.Background(), PullRequest{Ref: f.reg.Addr() + "/a:1"})
	if err != nil || got.ID != id(t, img) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestABrokenHostsFileIsAnErrorThatNamesIt(t *testing.T) {
	f := newFixture(t)
	f.push("a:1", files("a", "b"))
	file := filepath.Join(f.cfg.HostsDir, "registry.test", "hosts.toml")
	for _, content := range []string{"server = ", "sever = \"x\"", "[host.\"http://x\"]\ncapabilities = [\"pul\"]"} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1"})
		wantErr(t, err, errdefs.ErrFailedPrecondition, file)
	}
}

func TestMirrorsAreAskedInOrder(t *testing.T) {
	f := newFixture(t)
	second, third := newRegistry(t), newRegistry(t)
	img := f.push("a:1", files("a", "b"), rt.Layer(rt.Random(1, "d", 2, 100<<10)...))
	for _, r := range []*rt.Registry{second, third} {
		if err := r.Push("a:1", img); err != nil {
			t.Fatal(err)
		}
	}
	if err := rt.Mirrors(f.cfg.HostsDir, []string{"registry.test"}, f.reg, second, third); err != nil {
		t.Fatal(err)
	}
	all := []*rt.Registry{f.reg, second, third}
	again := func() {
		t.Helper()
		if err := f.Remove(context.Background(), id(t, img)); err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			r.ResetRequests()
			r.SetFaults(rt.Faults{})
		}
	}
	f.pull("a:1")
	if len(f.reg.Requests()) == 0 || len(second.Requests())+len(third.Requests()) > 0 {
		t.Error("the first mirror is not the one that was asked")
	}
	if ns := f.reg.Requests()[0].Namespace; ns != "registry.test" {
		t.Errorf("the mirror is told namespace %q", ns)
	}

	again()
	f.reg.SetFaults(rt.Faults{Down: true})
	f.pull("a:1")
	if len(second.Requests()) == 0 || len(third.Requests()) > 0 {
		t.Error("the second mirror does not stand in for one that is down")
	}

	again()
	f.reg.SetFaults(rt.Faults{Status: 404, Path: "/manifests/"})
	second.SetFaults(rt.Faults{Status: 503})
	f.pull("a:1")
	if len(third.Requests()) == 0 {
		t.Error("the third mirror does not stand in for those that fail")
	}

	again()
	layers, _ := img.Layers()
	bad := digestOf(t, layers[1])
	f.reg.SetFaults(rt.Faults{Corrupt: bad})
	f.pull("a:1")
	if f.reg.Sent(bad) == 0 || second.Sent(bad) == 0 {
		t.Error("the second mirror does not stand in for one that sends a corrupt blob")
	}

	again()
	f.reg.SetFaults(rt.Faults{CutAfter: 10 << 10, Path: "/blobs/" + bad})
	f.pull("a:1")
	size, _ := layers[1].Size()
	if f.reg.Sent(bad)+second.Sent(bad) != size {
		t.Errorf("the second mirror does not go on where the first was cut: %d and %d of %d", f.reg.Sent(bad),
			second.Sent(bad), size)
	}

	again()
	for _, r := range all {
		r.SetFaults(rt.Faults{Corrupt: bad})
	}
	_, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1"})
	wantErr(t, err, errdefs.ErrFailedPrecondition, bad)
	f.wantNothing()
}

func TestWhatARegistryDoesWrong(t *testing.T) {
	layer := func(t *testing.T, f *fixture) string {
		img := f.push("a:1", files("small", "x"), rt.Layer(rt.Random(1, "d", 2, 600<<10)...))
		layers, _ := img.Layers()
		return digestOf(t, layers[1])
	}
	for _, c := range []struct {
		name   string
		faults func(digest string) rt.Faults
		want   error // nil: the pull succeeds
		words  string
	}{
		{"a sound one", func(string) rt.Faults { return rt.Faults{} }, nil, ""},
		{"down", func(string) rt.Faults { return rt.Faults{Down: true} }, errdefs.ErrUnavailable, ""},
		{"slow blob", func(string) rt.Faults { return rt.Faults{BytesPerSecond: 200} },
			errdefs.ErrUnavailable, "bytes came in"},
		{"cut once", func(string) rt.Faults { return rt.Faults{CutAfter: 100 << 10, Times: 1} }, nil, ""},
		{"cut again and again, with progress", func(d string) rt.Faults {
			return rt.Faults{CutAfter: 70 << 10, Path: d}
		}, nil, ""},
		{"cut twice, without ranges", func(d string) rt.Faults {
			return rt.Faults{CutAfter: 100 << 10, Times: 2, NoRange: true, Path: d}
		}, nil, ""},
		{"cut always, without ranges", func(d string) rt.Faults {
			return rt.Faults{CutAfter: 100 << 10, NoRange: true, Path: d}
		},
			errdefs.ErrUnavailable, ""},
		{"cut always, at the first bytes", func(d string) rt.Faults {
			return rt.Faults{CutAfter: 10, Path: d}
		}, errdefs.ErrUnavailable, ""},
		{"stalled once", func(d string) rt.Faults { return rt.Faults{StallAfter: 100 << 10, Times: 1, Path: d} }, nil, ""},
		{"stalled always", func(d string) rt.Faults {
			return rt.Faults{StallAfter: 1000, Path: d}
		}, errdefs.ErrUnavailable, "bytes came in"},
		{"corrupt", func(d string) rt.Faults { return rt.Faults{Corrupt: d} }, errdefs.ErrFailedPrecondition, "digest"},
		{"500 twice", func(string) rt.Faults { return rt.Faults{Status: 500, StatusTimes: 2} }, nil, ""},
		{"503 always", func(string) rt.Faults { return rt.Faults{Status: 503} }, errdefs.ErrUnavailable, "503"},
		{"503 for blobs", func(d string) rt.Faults { return rt.Faults{Status: 503, Path: d} }, errdefs.ErrUnavailable,
			"503 Service Unavailable (UNKNOWN: made to fail)"},
		{"429 with patience", func(string) rt.Faults {
			return rt.Faults{Status: 429, StatusTimes: 1, RetryAfter: "1"}
		}, nil, ""},
		{"429 without end", func(string) rt.Faults { return rt.Faults{Status: 429} }, errdefs.ErrUnavailable, "429"},
		{"429 for an hour", func(string) rt.Faults {
			return rt.Faults{Status: 429, RetryAfter: "3600"}
		}, errdefs.ErrUnavailable, "429 Too Many Requests, the registry wants to be asked again after 1h0m0s"},
		{"no such blob", func(d string) rt.Faults { return rt.Faults{Status: 404, Path: d} }, errdefs.ErrNotFound, ""},
		{"a manifest of 100 MB", func(string) rt.Faults {
			return rt.Faults{ManifestSize: 100 << 20}
		}, errdefs.ErrResourceExhausted, "max_document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.reg.SetFaults(c.faults(layer(t, f)))
			start := time.Now()
			_, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1"})
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				if c.faults("").RetryAfter == "1" && time.Since(start) < time.Second {
					t.Error("Retry-After was not honoured")
				}
				return
			}
			wantErr(t, err, c.want, host+"a:1", c.words)
			away := errdefs.IsUnavailable(c.want) && !strings.HasPrefix(c.name, "429")
			if errors.Is(err, model.ErrRegistryUnavailable) != away {
				t.Errorf("the registry is unavailable: %v, and not %v: %v", !away, away, err)
			}
			f.dropLeftovers() // the small layer, where the registry may be back
			f.wantNothing()
			f.reg.SetFaults(rt.Faults{})
			f.pull("a:1") // and nothing stands in the way of a better day
		})
	}
}

func TestARegistryThatIsNotThere(t *testing.T) {
	f := newFixture(t)
	f.reg.Close()
	_, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1"})
	wantErr(t, err, errdefs.ErrUnavailable, "refused")
	wantErr(t, err, model.ErrRegistryUnavailable)
	f.wantNothing()
}

func TestImagesThatAreNotThere(t *testing.T) {
	f := newFixture(t)
	f.push("a:1", files("a", "b"))
	for _, ref := range []string{"a:2", "b:1", "a@sha256:" + strings.Repeat("0", 64)} {
		_, err := f.Pull(context.Background(), PullRequest{Ref: host + ref})
		wantErr(t, err, errdefs.ErrNotFound, host+ref)
	}
}

func TestManifestsThatAreNotImages(t *testing.T) {
	f := newFixture(t)
	config := f.reg.PutBlob([]byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:` +
		strings.Repeat("1", 64) + `"]}}`))
	chart := f.reg.PutBlob([]byte(`{"name":"chart"}`))
	desc := func(mt, digest string, size int) string {
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, mt, digest, size)
	}
	const oci = "application/vnd.oci.image.manifest.v1+json"
	const ociConfig = "application/vnd.oci.image.config.v1+json"
	size := 149
	if raw := `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:` + strings.Repeat("1",
		64) + `"]}}`; len(raw) != size {
		size = len(raw)
	}
	layer := "sha256:" + strings.Repeat("2", 64)
	for name, c := range map[string]struct{ mediaType, manifest, words string }{
		"schema 1": {"application/vnd.docker.distribution.manifest.v1+prettyjws",
			`{"schemaVersion":1,"name":"a","fsLayers":[]}`, "schema 1"},
		"no json": {oci, `{`, "parse"},
		"a chart with an image's type of configuration": {oci, `{"schemaVersion":2,"config":` + desc(ociConfig, chart, 16) +
			`,"layers":[]}`, "not the configuration of an image"},
		"empty": {oci, `{"schemaVersion":2}`, "not an image"},
		"both":  {oci, `{"schemaVersion":2,"manifests":[],"layers":[],"config":{}}`, "both"},
		"too few layers": {oci, `{"schemaVersion":2,"config":` + desc(ociConfig, config, size) + `,"layers":[]}`,
			"0 layers"},
		"an odd layer": {oci, `{"schemaVersion":2,"config":` + desc(ociConfig,
			config, size) + `,"layers":[` + desc("application/x-rar", layer, 5) + `]}`, "application/x-rar"},
		"an odd layer, encrypted": {oci, `{"schemaVersion":2,"config":` + desc(ociConfig, config,
			size) + `,"layers":[` + desc("application/x-rar+encrypted", layer, 5) + `]}`, "x-rar+encrypted"},
		"a bad digest": {oci, `{"schemaVersion":2,"config":` + desc(ociConfig, config,
			size) + `,"layers":[` + desc("application/vnd.oci.image.layer.v1.tar", "sha256:../../x", 5) + `]}`, "digest"},
		"a bad config": {oci, `{"schemaVersion":2,"config":` + desc(ociConfig, "sha256:../x", 5) + `,"layers":[]}`,
			"digest"},
		"negative layer": {oci, `{"schemaVersion":2,"config":` + desc(ociConfig,
			config, size) + `,"layers":[` + desc("application/vnd.oci.image.layer.v1.tar", layer, -5) + `]}`, "-5"},
		"negative config": {oci, `{"schemaVersion":2,"config":` + desc(ociConfig, config, -1) + `,"layers":[]}`, ""},
		"a huge config": {oci, `{"schemaVersion":2,"config":` + desc(ociConfig, config, 1<<40) + `,"layers":[]}`,
			"more than"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := f.reg.PutManifest("odd", "1", c.mediaType, []byte(c.manifest)); err != nil {
				t.Fatal(err)
			}
			_, err := f.Pull(context.Background(), PullRequest{Ref: host + "odd:1"})
			if name == "negative config" {
				if err == nil {
					t.Error("pulled")
				}
				return
			}
			var want error = errdefs.ErrInvalidArgument
			if name == "a huge config" {
				want = errdefs.ErrResourceExhausted
			}
			wantErr(t, err, want, c.words)
		})
	}
	f.wantNothing()
}

func TestALayerThatIsNotItsDiffIDIsRefused(t *testing.T) {
	f := newFixture(t)
	img := f.push("a:1", files("a", "b"))
	raw, _ := img.RawManifest()
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	other, err := rt.NewLayer(mustTar(t, rt.File("evil", 0o644, "evil")), rt.Gzip, false)
	if err != nil {
		t.Fatal(err)
	}
	rc, _ := other.Compressed()
	data := make([]byte, 1<<20)
	n, _ := rc.Read(data)
	f.reg.PutBlob(data[:n])
	layer := m["layers"].([]any)[0].(map[string]any)
	layer["digest"], layer["size"] = digestOf(t, other), n
	raw, _ = json.Marshal(m)
	if err := f.reg.PutManifest("a", "2", "application/vnd.oci.image.manifest.v1+json", raw); err != nil {
		t.Fatal(err)
	}
	_, err = f.Pull(context.Background(), PullRequest{Ref: host + "a:2"})
	wantErr(t, err, errdefs.ErrInvalidArgument, "the image's configuration says")
	f.wantNothing()
}

func TestARegistryThatNeverAnswersCanBeCancelled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f := newFixture(t)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = f.Pull(ctx, PullRequest{Ref: l.Addr().String() + "/a:1"})
	wantErr(t, err, context.DeadlineExceeded)
	if time.Since(start) > 20*time.Second {
		t.Error("slow to give up")
	}
}

// TestOtherSettingsHoldForPullsThatBeginFromThenOn, and those that cannot be change nothing. Seen to fail with the
// settings of Open.
func TestOtherSettingsHoldForPullsThatBeginFromThenOn(t *testing.T) {
	f := newFixture(t)
	f.push("one:1", rt.Label("n", "one"))
	f.pull("one:1")
	other := f.cfg.Settings
	other.Platform = "linux/none/such/at/all"
	if _, err := f.Prepare(other); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a platform that is none: %v", err)
	}
	other = f.cfg.Settings
	other.PinnedImages, other.Limits.Document = []string{"*"}, 10
	adopt, err := f.Prepare(other)
	if err != nil {
		t.Fatal(err)
	}
	if img, err := f.Get(t.Context(), host+"one:1"); err != nil || img.Pinned {
		t.Errorf("before they are adopted: %+v, %v", img, err)
	}
	adopt()
	if img, err := f.Get(t.Context(), host+"one:1"); err != nil || !img.Pinned {
		t.Errorf("the image that was there: %+v, %v", img, err)
	}
	f.push("two:1", rt.Label("n", "two"))
	if _, err := f.Pull(t.Context(), PullRequest{Ref: host + "two:1"}); err == nil ||
		!strings.Contains(err.Error(), "more than 10 bytes, the limit that [image] max_document sets") {
		t.Errorf("a pull beyond the new limit: %v", err)
	}
	other.HostsDir = t.TempDir()
	if adopt, err = f.Prepare(other); err != nil {
		t.Fatal(err)
	}
	adopt()
	if _, err := f.Pull(t.Context(), PullRequest{Ref: host + "one:1"}); err == nil {
		t.Error("a registry that is not configured any more is still asked by its mirror")
	}
}
