package registrytest

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func registry(t *testing.T, opts ...Option) *Registry {
	t.Helper()
	r, err := New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// image has a layer of its own below what the options say.
func image(t *testing.T, opts ...ImageOption) v1.Image {
	t.Helper()
	img, err := Image(append([]ImageOption{WithFiles(map[string]string{"bin/true": "#!"})}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func pull(t *testing.T, r *Registry, image string, opts ...remote.Option) (v1.Image, error) {
	t.Helper()
	ref, err := name.ParseReference(r.Addr() + "/" + image)
	if err != nil {
		t.Fatal(err)
	}
	return remote.Image(ref, opts...)
}

func TestWhatIsPushedIsPulled(t *testing.T) {
	for _, c := range []Compression{Gzip, Zstd, Uncompressed} {
		for _, docker := range []bool{false, true} {
			opts := []ImageOption{Compressed(c), Cmd("true"), WithFiles(map[string]string{"a/b": "c"})}
			if docker {
				opts = append(opts, Docker())
			}
			r := registry(t)
			img := image(t, opts...)
			if err := r.Push("library/busybox:1.36", img); err != nil {
				t.Fatal(err)
			}
			got, err := pull(t, r, "library/busybox:1.36")
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Image(got, validate.Fast); err != nil {
				t.Errorf("%s docker=%v: %v", c, docker, err)
			}
			cf, err := got.ConfigFile()
			if err != nil || len(cf.RootFS.DiffIDs) != 2 || cf.Config.Cmd[0] != "true" {
				t.Errorf("%s docker=%v: config %+v, %v", c, docker, cf, err)
			}
		}
	}
}

func TestAnIndexHoldsItsPlatforms(t *testing.T) {
	r := registry(t)
	a, b := image(t, Platform("linux/amd64")), image(t, Platform("linux/arm64/v8"))
	idx, err := Index(false, a, b)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Push("multi:1", idx); err != nil {
		t.Fatal(err)
	}
	got, err := pull(t, r, "multi:1", remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}))
	if err != nil {
		t.Fatal(err)
	}
	want, _ := b.Digest()
	if have, _ := got.Digest(); have != want {
		t.Errorf("got %s, want %s", have, want)
	}
}

func TestCredentialsAreAskedFor(t *testing.T) {
	good := remote.WithAuth(&authn.Basic{Username: "u", Password: "p"})
	bad := remote.WithAuth(&authn.Basic{Username: "u", Password: "q"})
	for name, opt := range map[string]Option{"basic": WithBasicAuth("u", "p"),
		"token": WithTokenAuth("u", "p", "refresh")} {
		r := registry(t, opt)
		if err := r.Push("x:1", image(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := pull(t, r, "x:1"); err == nil {
			t.Errorf("%s: pulled without credentials", name)
		}
		if _, err := pull(t, r, "x:1", bad); err == nil {
			t.Errorf("%s: pulled with wrong credentials", name)
		}
		if _, err := pull(t, r, "x:1", good); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := registry(t, WithTokenAuth("u", "p", "refresh"))
	if err := r.Push("x:1", image(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t, r,
		"x:1", remote.WithAuth(authn.FromConfig(authn.AuthConfig{IdentityToken: "refresh"}))); err != nil {
		t.Error("refresh token:", err)
	}
	r = registry(t, WithRegistryToken("bearer"))
	if err := r.Push("x:1", image(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t, r,
		"x:1", remote.WithAuth(authn.FromConfig(authn.AuthConfig{RegistryToken: "bearer"}))); err != nil {
		t.Error("registry token:", err)
	}
}

func get(t *testing.T, url, rng string) (int, []byte, error) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if rng != "" {
		req.Header.Set("Range", rng)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, data, err
}

func TestFaultsHappen(t *testing.T) {
	r := registry(t)
	body := strings.Repeat("0123456789", 1000)
	digest := r.PutBlob([]byte(body))
	url := r.URL() + "/v2/x/blobs/" + digest

	r.SetFaults(Faults{CutAfter: 4000, Times: 1})
	if _, data, err := get(t, url, ""); err == nil || len(data) != 4000 {
		t.Errorf("cut: %d bytes, %v", len(data), err)
	}
	if status, data, err := get(t, url, "bytes=4000-"); err != nil || status != 206 || string(data) != body[4000:] {
		t.Errorf("rest: %d, %d bytes, %v", status, len(data), err)
	}
	r.SetFaults(Faults{NoRange: true})
	if status, data, err := get(t, url, "bytes=4000-"); err != nil || status != 200 || len(data) != len(body) {
		t.Errorf("no range: %d, %d bytes, %v", status, len(data), err)
	}
	r.SetFaults(Faults{Corrupt: digest})
	if _, data, _ := get(t, url, ""); string(data) == body || len(data) != len(body) {
		t.Error("not corrupt")
	}
	r.SetFaults(Faults{Status: 429, StatusTimes: 1, RetryAfter: "1"})
	if status, _, _ := get(t, url, ""); status != 429 {
		t.Error("status", status)
	}
	if status, _, _ := get(t, url, ""); status != 200 {
		t.Error("status", status)
	}
	r.SetFaults(Faults{Down: true})
	if _, _, err := get(t, url, ""); err == nil {
		t.Error("not down")
	}
	r.SetFaults(Faults{ManifestSize: 1 << 20})
	if _, data, err := get(t, r.URL()+"/v2/x/manifests/1", ""); err != nil || len(data) < 1<<20 {
		t.Errorf("huge manifest: %d bytes, %v", len(data), err)
	}
}

func TestTLSIsTrustedByItsCertificate(t *testing.T) {
	r := registry(t, WithTLS())
	dir := t.TempDir()
	if err := r.HostsDir(dir, "registry.test", "docker.io", "localhost:5000"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"registry.test/hosts.toml", "docker.io/hosts.toml", "localhost_5000_/hosts.toml"} {
		if _, err := os.Stat(filepath.Join(dir, want)); err != nil {
			t.Error(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(r.CertPEM())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	resp, err := client.Get(r.URL() + "/v2/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}
