package image

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/model"
	rt "berth/internal/registrytest"
)

// server makes a URL the one that answers for a registry's name.
func (f *fixture) server(name, url string) {
	f.t.Helper()
	dir := filepath.Join(f.cfg.HostsDir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), fmt.Appendf(nil, "server = %q\n", url), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// TestAnImageIsNotHadByItsDigestAlone: whoever knows the digest of somebody's private image can have a registry whose
// tags stand for it. Seen to fail with all documents of the node at hand for each pull.
func TestAnImageIsNotHadByItsDigestAlone(t *testing.T) {
	f := newFixture(t, rt.WithBasicAuth("user", "secret"))
	ctx := context.Background()
	img := f.push("app:1", files("private", "data"), rt.Env("TOKEN=x"))
	raw := mustManifest(t, img)
	artifact := f.pushArtifact("model:1", rt.TitledFile("weights", "private"))
	for _, name := range []string{"app:1", "model:1"} {
		if _, err := f.Pull(ctx, PullRequest{Ref: host + name,
			Auth: &model.Auth{Username: "user", Password: "secret"}}); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{host + "app:1"}
	wantNames := func(when string) {
		t.Helper()
		is, err := f.Get(ctx, id(t, img))
		if err != nil || !slices.Equal(is.RepoTags, names) || len(is.RepoDigests) != 1 {
			t.Errorf("%s: the image is %+v; %v", when, is, err)
		}
	}

	// It answers HEAD for any manifest, and has nothing else.
	heads := 0
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodHead || !strings.Contains(r.URL.Path, "/manifests/") {
			http.NotFound(w, r)
			return
		}
		heads++
		digest, size := digestOf(t, img), int64(len(raw))
		if strings.HasPrefix(r.URL.Path, "/v2/model/") {
			digest, size = artifact.Digest.String(), artifact.Size
		}
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", digest)
		w.Header().Set("Content-Length", fmt.Sprint(size))
	}))
	t.Cleanup(evil.Close)
	f.server("evil.test", evil.URL)
	for _, ref := range []string{
		"evil.test/x:1", "evil.test/app:1", "evil.test/x@" + digestOf(t, img), "evil.test/model:1",
	} {
		_, err := f.Pull(ctx, PullRequest{Ref: ref})
		wantErr(t, err, errdefs.ErrNotFound, "evil.test/")
		if _, err := f.Get(ctx, ref); !errdefs.IsNotFound(err) {
			t.Errorf("%s is there: %v", ref, err)
		}
		wantNames(ref)
	}
	if heads == 0 {
		t.Error("the registry was not asked: this tests nothing")
	}
	// A tag that a client of the node has given is no pull.
	if _, err := f.Tag(ctx, id(t, img), "evil.test/x:tagged"); err != nil {
		t.Fatal(err)
	}
	names = []string{"evil.test/x:tagged", host + "app:1"}
	_, err := f.Pull(ctx, PullRequest{Ref: "evil.test/x:1"})
	wantErr(t, err, errdefs.ErrNotFound)
	wantNames("tagged")

	// It has a manifest of its own, which names the private configuration.
	second := newRegistry(t)
	f.server("second.test", second.URL())
	second.PutRaw("x", "1", ocispec.MediaTypeImageManifest, append(raw, '\n'))
	_, err = f.Pull(ctx, PullRequest{Ref: "second.test/x:1"})
	wantErr(t, err, errdefs.ErrNotFound, id(t, img))
	wantNames("the configuration")

	// The same repository asks for credentials, as it did before.
	for _, auth := range []*model.Auth{nil, {Username: "user", Password: "wrong"}} {
		_, err := f.Pull(ctx, PullRequest{Ref: host + "app:1", Auth: auth})
		wantErr(t, err, errdefs.ErrUnauthenticated)
	}
}

// TestAnImageOfSeveralRepositoriesIsLoadedOnce: of each further one only the documents are read, and those once. Seen
// to fail with the documents read at each pull, and with those of the node at hand for each repository.
func TestAnImageOfSeveralRepositoriesIsLoadedOnce(t *testing.T) {
	f := newFixture(t)
	second := newRegistry(t)
	f.server("second.test", second.URL())
	f.server("third.test", f.reg.URL()) // another name for the same server
	img := f.push("app:1", files("a", "a"), files("b", "b"))
	for reg, name := range map[*rt.Registry]string{second: "copy:1", f.reg: "other:1"} {
		if err := reg.Push(name, img); err != nil {
			t.Fatal(err)
		}
	}
	manifest, config := "/manifests/"+digestOf(t, img), "/blobs/"+id(t, img)
	requests := func(ref string) string {
		t.Helper()
		f.reg.ResetRequests()
		second.ResetRequests()
		got, err := f.Pull(context.Background(), PullRequest{Ref: ref})
		if err != nil || got.ID != id(t, img) {
			t.Fatalf("%s is %+v; %v", ref, got, err)
		}
		var list []string
		for _, r := range slices.Concat(f.reg.Requests(), second.Requests()) {
			list = append(list, r.Method+" "+r.Path)
		}
		return strings.Join(list, ", ")
	}
	f.pull("app:1")
	for ref, at := range map[string]string{
		host + "other:1": "/v2/other", "second.test/copy:1": "/v2/copy", "third.test/app:1": "/v2/app",
	} {
		if got, want := requests(ref), "HEAD "+at+"/manifests/1, GET "+at+manifest+", GET "+at+config; got != want {
			t.Errorf("%s: the requests are %s, want %s", ref, got, want)
		}
	}
	again := func(when string) {
		t.Helper()
		for ref, at := range map[string]string{host + "app:1": "/v2/app", host + "other:1": "/v2/other",
			"second.test/copy:1": "/v2/copy", "third.test/app:1": "/v2/app"} {
			if got, want := requests(ref), "HEAD "+at+"/manifests/1"; got != want {
				t.Errorf("%s: %s: the requests are %s, want %s", when, ref, got, want)
			}
		}
	}
	again("again")
	f.reopen()
	again("after a restart")
	// The name in the reference counts, and not which server answers for it.
	if err := second.Push("app:1", img); err != nil {
		t.Fatal(err)
	}
	f.mirror(second.URL())
	if got, want := requests(host+"app:1"), "HEAD /v2/app/manifests/1"; got != want {
		t.Errorf("from a mirror: the requests are %s, want %s", got, want)
	}
	if len(second.Requests()) != 1 {
		t.Error("the mirror was not asked")
	}
}
