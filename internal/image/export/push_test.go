package export_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/asroot"
	"berth/internal/image"
	"berth/internal/image/encryption/encryptiontest"
	"berth/internal/image/export"
	"berth/internal/image/registry"
	"berth/internal/model"
	rt "berth/internal/registrytest"
)

// other is a registry with a name of its own in the node's configuration.
func (n *node) other(name string, options ...rt.Option) *rt.Registry {
	n.t.Helper()
	reg, err := rt.New(options...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { reg.Close() })
	if err := reg.HostsDir(n.hosts, name); err != nil {
		n.t.Fatal(err)
	}
	return reg
}

func (n *node) push(image, name string) *model.Pushed {
	n.t.Helper()
	pushed, err := n.Push(context.Background(), model.PushRequest{Image: image, Name: name})
	if err != nil {
		n.t.Fatal(err)
	}
	return pushed
}

// sent are the requests that brought bytes of blobs.
func sent(reg *rt.Registry) (list []string) {
	for _, r := range reg.Requests() {
		if (r.Method == "PUT" || r.Method == "PATCH") && strings.Contains(r.Path, "/uploads/") {
			list = append(list, r.Method+" "+r.Path)
		}
	}
	return list
}

// repull pulls a name anew and returns the image's ID.
func (n *node) repull(ref string) *model.Image {
	n.t.Helper()
	second := newNode(n.t)
	if err := n.reg.HostsDir(second.hosts, "registry.test"); err != nil {
		n.t.Fatal(err)
	}
	for name, reg := range n.others {
		if err := reg.HostsDir(second.hosts, name); err != nil {
			n.t.Fatal(err)
		}
	}
	img, err := second.Pull(context.Background(), image.PullRequest{Ref: ref})
	if err != nil {
		n.t.Fatal(err)
	}
	return img
}

// TestAPushToAnotherRegistry: the image that another node pulls from there has the same ID, and a second push sends
// nothing.
func TestAPushToAnotherRegistry(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.Docker(), rt.Layer(rt.Random(1, "r", 50, 40000)...),
		rt.WithFiles(map[string]string{"f": "x"}), rt.Cmd("a"))
	n.others["other.test"] = n.other("other.test")
	n.reg.Close() // what was pulled is not needed
	pushed := n.push("registry.test/a:1", "other.test/team/a:2")
	if pushed.Name != "other.test/team/a:2" {
		t.Errorf("pushed as %s", pushed.Name)
	}
	if len(sent(n.others["other.test"])) == 0 {
		t.Error("nothing was sent")
	}
	got := n.repull("other.test/team/a:2")
	if got.ID != id || !strings.HasSuffix(got.RepoDigests[0], "@"+pushed.Digest) {
		t.Errorf("it is %s there, %v, want %s, %s", got.ID, got.RepoDigests, id, pushed.Digest)
	}
	n.others["other.test"].ResetRequests()
	if again := n.push(id, "other.test/team/a:2"); again.Digest != pushed.Digest {
		t.Errorf("pushed again it has digest %s, not %s", again.Digest, pushed.Digest)
	}
	if list := sent(n.others["other.test"]); len(list) > 0 {
		t.Errorf("a second push sends %v", list)
	}
}

// TestAPushWithinARegistryKeepsTheDigest: where the registry has the layers as they were pulled, none is sent, and the
// manifest is the one that was pulled.
func TestAPushWithinARegistryKeepsTheDigest(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.Layer(rt.Random(1, "r", 50, 40000)...))
	n.without(id, os.Remove) // layers of an older version have no record, and need none here
	img, err := n.Get(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	n.reg.ResetRequests()
	var phases []model.PullPhase
	pushed, err := n.Push(context.Background(), model.PushRequest{Image: id, Name: "registry.test/team/a:2",
		Progress: func(p model.PushProgress) { phases = append(phases, p.Phase) }})
	if err != nil {
		t.Fatal(err)
	}
	if pushed.Digest != img.Manifest || len(phases) != 1 || phases[0] != model.PullPresent {
		t.Errorf("pushed with digest %s, pulled with %s; told %v", pushed.Digest, img.Manifest, phases)
	}
	if got := n.repull("registry.test/team/a:2"); got.ID != id {
		t.Errorf("it is %s there, want %s", got.ID, id)
	}
}

// TestAPushThatFails: each refusal has the code and the words that a client acts on, and what passes is tried again.
// TestADecryptedImageStaysOnTheNode: it is neither saved nor pushed, but to the registry that has its encrypted layers.
// Seen to fail without the refusals: the layers went out as they are on the disk.
func TestADecryptedImageStaysOnTheNode(t *testing.T) {
	asroot.Need(t, "keys of root")
	n := newNode(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keys := t.TempDir()
	if err := os.WriteFile(filepath.Join(keys, "key"), der, 0o600); err != nil {
		t.Fatal(err)
	}
	adopt, err := n.Prepare(image.Settings{HostsDir: n.hosts, DecryptionKeys: keys})
	if err != nil {
		t.Fatal(err)
	}
	adopt()
	tar, err := rt.Tar(rt.File("secret", 0o644, "hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := rt.NewLayer(tar, rt.Gzip, false)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := encryptiontest.Encrypt(plain, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	n.pull("registry.test/a:1", rt.ReadyLayer(layer), rt.WithFiles(map[string]string{"plain": "x"}))
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	var saved strings.Builder
	err = n.Save(t.Context(), []string{"registry.test/a:1"}, &saved)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), digest.String()) || saved.Len() > 0 {
		t.Errorf("a save: %v, with %d bytes", err, saved.Len())
	}
	other := n.other("other.test")
	_, err = n.Push(t.Context(), model.PushRequest{Image: "registry.test/a:1", Name: "other.test/a:1"})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), digest.String()) {
		t.Errorf("a push elsewhere: %v", err)
	}
	if list := sent(other); len(list) > 0 {
		t.Errorf("a push elsewhere sends %v", list)
	}
	img, err := n.Get(t.Context(), "registry.test/a:1")
	if err != nil {
		t.Fatal(err)
	}
	if pushed := n.push("registry.test/a:1", "registry.test/b:1"); pushed.Digest != img.Manifest {
		t.Errorf("pushed to the registry that has it, the manifest is %s, want %s", pushed.Digest, img.Manifest)
	}
}

func TestAPushThatFails(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.WithFiles(map[string]string{"f": "x"}))
	fresh := n.pull("registry.test/fresh:1", rt.WithFiles(map[string]string{"f": "y"}))
	open := n.other("open.test")
	n.other("closed.test", rt.WithBasicAuth("user", "password"))
	ctx := context.Background()
	for _, c := range []struct {
		what  string
		to    string
		auth  *model.Auth
		fault rt.Faults
		is    error
		words []string
	}{
		{"too many requests, twice", "open.test/a:1", nil,
			rt.Faults{Path: "/uploads", Status: 429, StatusTimes: 2, RetryAfter: "0"}, nil, nil},
		{"a registry that is down", "open.test/b:1", nil, rt.Faults{Down: true}, errdefs.ErrUnavailable,
			[]string{"open.test/b:1"}},
		{"refused", "open.test/c:1", nil, rt.Faults{Path: "/uploads", Status: 403}, errdefs.ErrPermissionDenied,
			[]string{"open.test/c:1", "sha256:"}},
		{"a manifest that is not taken", "open.test/d:1", nil, rt.Faults{Path: "/d/manifests/", Status: 400},
			errdefs.ErrFailedPrecondition, []string{"manifest sha256:"}},
		{"no credentials", "closed.test/a:1", nil, rt.Faults{}, errdefs.ErrUnauthenticated, nil},
		{"wrong credentials", "closed.test/a:1", &model.Auth{Username: "user", Password: "wrong-secret"}, rt.Faults{},
			errdefs.ErrUnauthenticated, nil},
		{"credentials", "closed.test/a:1", &model.Auth{Username: "user", Password: "password"}, rt.Faults{}, nil, nil},
		{"a digest", "open.test/a@sha256:" + strings.Repeat("0", 64), nil, rt.Faults{}, errdefs.ErrInvalidArgument, nil},
		{"no name", "open.test/A:::", nil, rt.Faults{}, errdefs.ErrInvalidArgument, nil},
	} {
		open.SetFaults(c.fault)
		img := id
		if c.what == "refused" { // the registry keeps a blob once for all its repositories
			img = fresh
		}
		_, err := n.Push(ctx, model.PushRequest{Image: img, Name: c.to, Auth: c.auth})
		if c.is == nil && err != nil || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %v", c.what, err, c.is)
		}
		for _, word := range c.words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q is not in: %v", c.what, word, err)
			}
		}
		if err != nil && strings.Contains(err.Error(), "wrong-secret") {
			t.Errorf("%s: the password is in: %v", c.what, err)
		}
	}
	open.SetFaults(rt.Faults{})
	if _, err := n.Push(ctx, model.PushRequest{Image: "registry.test/none:1"}); !errdefs.IsNotFound(err) {
		t.Errorf("an image that is not here: %v", err)
	}
	n.without(id, os.Remove)
	if _, err := n.Push(ctx, model.PushRequest{Image: id, Name: "open.test/e:1"}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "berth pull") {
		t.Errorf("a layer without a record: %v", err)
	}
}

// TestAnIDIsNoNameToPushTo, although it can be read as the name of an image of Docker Hub. Seen to fail where it was:
// the image was sent to the hosts of Docker Hub.
func TestAnIDIsNoNameToPushTo(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.WithFiles(map[string]string{"f": "x"}))
	hub := n.other("docker.io")
	for _, ref := range []string{id, strings.TrimPrefix(id, "sha256:"), id[7:19], id[:20]} {
		_, err := n.Push(t.Context(), model.PushRequest{Image: ref})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), ref) || len(hub.Requests()) > 0 {
			t.Errorf("%s: %v, and %d requests", ref, err, len(hub.Requests()))
		}
	}
	img, err := rt.Image(rt.WithFiles(map[string]string{"f": "y"}))
	if err == nil {
		err = hub.Push("library/b:latest", img)
	}
	if err == nil {
		_, err = n.Pull(t.Context(), image.PullRequest{Ref: "b"})
	}
	if err != nil {
		t.Fatal(err)
	}
	n.push("b", "")
}

// fullDisk is a store whose disk takes nothing more.
type fullDisk struct{ *image.Store }

func (fullDisk) Spool() (*os.File, error) { return os.OpenFile("/dev/full", os.O_RDWR, 0) }

func TestAPushWithAFullDisk(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.Layer(rt.Random(1, "r", 3, 400000)...))
	other := n.other("other.test")
	full := export.New(fullDisk{n.Store}, n.children, slog.New(slog.DiscardHandler))
	_, err := full.Push(context.Background(), model.PushRequest{Image: id, Name: "other.test/a:1"})
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "layer sha256:") {
		t.Errorf("the error is %v", err)
	}
	if list := other.Requests(); len(list) > 0 {
		t.Errorf("the registry was asked %v", list)
	}
}

// TestAPushWithTokens: the registry's token server is asked for the right to push, and to pull from the repository that
// has the layers.
func TestAPushWithTokens(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.Layer(rt.Random(1, "r", 50, 40000)...))
	other := n.other("tokens.test", rt.WithTokenAuth("user", "password", "refresh"), rt.WithTLS("tokens.test"))
	push := func(name string, auth model.Auth) error {
		_, err := n.Push(context.Background(), model.PushRequest{Image: id, Name: name, Auth: &auth})
		return err
	}
	if err := push("tokens.test/a:1", model.Auth{Username: "user", Password: "wrong"}); !errdefs.IsUnauthorized(err) {
		t.Errorf("a wrong password: %v", err)
	}
	if err := push("tokens.test/a:1", model.Auth{Username: "user", Password: "password"}); err != nil {
		t.Error(err)
	}
	if err := push("tokens.test/b:1", model.Auth{IdentityToken: "refresh"}); err != nil {
		t.Error(err)
	}
	scopes := ""
	for _, r := range other.TokenRequests() {
		scopes += strings.Join(r.Form["scope"], " ") + "\n"
	}
	if !strings.Contains(scopes, "repository:a:pull,push") || !strings.Contains(scopes, "repository:b:pull,push") {
		t.Errorf("tokens were asked for\n%s", scopes)
	}
}

// slow is a registry that takes all that is pushed, in its own time.
type slow struct {
	put  func(req *http.Request) // before the answer to a PUT of a layer
	puts atomic.Int32
	end  chan struct{} // closed with the test
}

func (s *slow) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.Method == http.MethodPost:
		w.Header().Set("Location", "/v2/a/blobs/uploads/1")
		w.WriteHeader(http.StatusAccepted)
	case req.Method == http.MethodPut:
		if strings.Contains(req.URL.Path, "/uploads/") {
			s.puts.Add(1)
			s.put(req)
		}
		_, _ = io.Copy(io.Discard, req.Body)
		w.WriteHeader(http.StatusCreated)
	default:
		http.NotFound(w, req)
	}
}

func (n *node) slow(put func(*http.Request)) *slow {
	n.t.Helper()
	s := &slow{put: put, end: make(chan struct{})}
	server := httptest.NewServer(s)
	n.t.Cleanup(server.Close)
	n.t.Cleanup(func() { close(s.end) })
	dir := filepath.Join(n.hosts, "slow.test")
	err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "hosts.toml"),
		[]byte("server = \""+server.URL+"\"\n"), 0o600))
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// noise is what gzip makes no smaller. Of some megabytes not all is in buffers of the kernel when a registry takes
// nothing.
func noise(size int) string {
	data := make([]byte, size)
	_, _ = rand.Read(data)
	return string(data)
}

// TestAPushToASlowRegistry: a registry may take its time to check what it has taken, and one that takes nothing more is
// left.
func TestAPushToASlowRegistry(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	const stall = 3 * time.Second
	n := newNodeWith(t, registry.Retry{Attempts: 2, Backoff: time.Millisecond, Stall: stall})
	id := n.pull("registry.test/a:1", rt.WithFiles(map[string]string{"r": noise(8 << 20)}))
	s := n.slow(func(req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		time.Sleep(3 * stall)
	})
	if _, err := n.Push(context.Background(), model.PushRequest{Image: id, Name: "slow.test/a:1"}); err != nil {
		t.Error(err)
	}
	if got := s.puts.Load(); got != 2 {
		t.Errorf("a layer and a configuration were put in %d requests", got)
	}
	var stuck *slow
	stuck = n.slow(func(*http.Request) { <-stuck.end })
	_, err := n.Push(context.Background(), model.PushRequest{Image: id, Name: "slow.test/a:1"})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "taken nothing") || stuck.puts.Load() != 2 {
		t.Errorf("after %d attempts: %v", stuck.puts.Load(), err)
	}
}

// TestAPushEndsWithItsClient: in the middle of a layer, at once, and the image can be removed.
func TestAPushEndsWithItsClient(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.WithFiles(map[string]string{"r": noise(8 << 20)}))
	ctx, cancel := context.WithCancel(context.Background())
	var s *slow
	s = n.slow(func(*http.Request) {
		cancel()
		<-s.end
	})
	begin := time.Now()
	_, err := n.Push(ctx, model.PushRequest{Image: id, Name: "slow.test/a:1"})
	if !errors.Is(err, context.Canceled) || time.Since(begin) > 20*time.Second {
		t.Errorf("after %s: %v", time.Since(begin), err)
	}
	if err := n.Remove(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, filepath.Join(n.root, "layers")); !slices.Equal(left, []string{"0"}) {
		t.Errorf("a push that has ended keeps %v", left)
	}
}

// TestAPushThatIsNotConfigured: a registry whose hosts may only be pulled from.
func TestAPushThatIsNotConfigured(t *testing.T) {
	n := newNode(t)
	id := n.pull("registry.test/a:1", rt.WithFiles(map[string]string{"f": "x"}))
	dir := filepath.Join(n.hosts, "mirror.test")
	text := "server = \"" + n.reg.URL() + "\"\ncapabilities = [\"pull\", \"resolve\"]\n"
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text),
		0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := n.Push(context.Background(), model.PushRequest{Image: id, Name: "mirror.test/a:1"})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "capability push") {
		t.Errorf("the error is %v", err)
	}
}
