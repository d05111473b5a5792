package image

import (
	"archive/tar"
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/asroot"
	"berth/internal/image/encryption/encryptiontest"
	rt "berth/internal/registrytest"
)

// decrypts gives the store a new key for encrypted images, and returns its public part. The key is in dir alone.
func (f *fixture) decrypts() (public crypto.PublicKey, dir string) {
	f.t.Helper()
	asroot.Need(f.t, "keys of root")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		f.t.Fatal(err)
	}
	dir = f.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), der, 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.keys(dir)
	return key.Public(), dir
}

// keys has the store look for keys in a directory.
func (f *fixture) keys(dir string) {
	f.t.Helper()
	f.cfg.DecryptionKeys = dir
	adopt, err := f.Prepare(f.cfg.Settings)
	if err != nil {
		f.t.Fatal(err)
	}
	adopt()
}

// encrypted is a layer that is encrypted for a key.
func encrypted(t *testing.T, public crypto.PublicKey, c rt.Compression, docker bool,
	entries ...rt.Entry) *encryptiontest.Layer {
	t.Helper()
	plain, err := rt.NewLayer(mustTar(t, entries...), c, docker)
	if err != nil {
		t.Fatal(err)
	}
	l, err := encryptiontest.Encrypt(plain, public)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// content is a file of a layer on disk, by the image that has it as its top.
func (f *fixture) content(image, name string) string {
	f.t.Helper()
	l, err := f.AddReference(image, "test")
	if err != nil {
		f.t.Fatal(err)
	}
	defer f.Release("test")
	data, err := os.ReadFile(filepath.Join(l.Dirs[0], name))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(data)
}

// TestEncryptedLayersAreDecryptedOnTheirWay: of each kind, beside layers that are not encrypted, and those that come as
// ranges.
func TestEncryptedLayersAreDecryptedOnTheirWay(t *testing.T) {
	f := newFixture(t)
	f.cfg.Ranges = smallRanges
	public, _ := f.decrypts()
	for _, c := range []rt.Compression{rt.Gzip, rt.Zstd, rt.Uncompressed} {
		for _, docker := range []bool{false, true} {
			name := fmt.Sprintf("kinds:%s-%v", c, docker)
			// More than the rings hold.
			big := encrypted(t, public, c, docker, rt.Random(int64(len(name)), "big", 3, 700<<10)...)
			top := encrypted(t, public, c, docker, rt.File("hello", 0o644, name))
			opts := []rt.ImageOption{files("plain", name), rt.ReadyLayer(big), rt.ReadyLayer(top)}
			if docker {
				opts = append(opts, rt.Docker())
			}
			img := f.push(name, opts...)
			got := f.pull(name)
			if got != id(t, img) || f.content(got, "hello") != name {
				t.Errorf("%s: the image is %s with %q", name, got, f.content(got, "hello"))
			}
			f.reopen()
			f.keys(f.cfg.DecryptionKeys)
			if f.pull(name) != got {
				t.Errorf("%s: after a restart it is another image", name)
			}
		}
	}
}

// TestWithoutItsKeyAnEncryptedImageIsNotPulled, not even if its layers are here: a key is asked for at each pull. Seen
// to fail for layers that are here with keys that are opened for downloads alone.
func TestWithoutItsKeyAnEncryptedImageIsNotPulled(t *testing.T) {
	f := newFixture(t)
	public, dir := f.decrypts()
	secret := encrypted(t, public, rt.Gzip, false, rt.File("secret", 0o644, "hunter2"))
	img := f.push("a:1", rt.ReadyLayer(secret))
	layer := "layer " + digestOf(t, secret)
	refused := func(words ...string) {
		t.Helper()
		f.reg.ResetRequests()
		_, err := f.Pull(t.Context(), PullRequest{Ref: host + "a:1"})
		wantErr(t, err, errdefs.ErrFailedPrecondition, append(words, layer)...)
		for _, r := range f.reg.Requests() {
			if strings.HasSuffix(r.Path, digestOf(t, secret)) {
				t.Errorf("the layer was asked for: %s %s", r.Method, r.Path)
			}
		}
	}
	f.keys("")
	refused("image.decryption_keys_path")
	f.decrypts()
	refused("none of the 1 keys")
	f.keys("/no/such")
	refused("/no/such")
	f.wantNothing()
	f.keys(dir)
	f.pull("a:1")
	f.keys("")
	refused("image.decryption_keys_path")
	if have, err := f.Get(t.Context(), "registry.test/a:1"); err != nil || have.ID != id(t, img) {
		t.Errorf("the image that is here: %+v, %v", have, err)
	}
}

// TestALayerThatIsNotWhatWasEncryptedIsRefused: by its HMAC before a decompressor is blamed for garbage, and by its
// diff ID. Seen to fail without the comparison of the HMAC.
func TestALayerThatIsNotWhatWasEncryptedIsRefused(t *testing.T) {
	f := newFixture(t)
	public, _ := f.decrypts()
	spoil := func(name string, l *encryptiontest.Layer, change func(options map[string]any)) {
		t.Helper()
		var options map[string]any
		data, err := base64.StdEncoding.DecodeString(l.Annotations["org.opencontainers.image.enc.pubopts"])
		if err = errors.Join(err, json.Unmarshal(data, &options)); err != nil {
			t.Fatal(err)
		}
		change(options)
		if data, err = json.Marshal(options); err != nil {
			t.Fatal(err)
		}
		l.Annotations["org.opencontainers.image.enc.pubopts"] = base64.StdEncoding.EncodeToString(data)
		f.push(name, rt.ReadyLayer(l))
	}
	for name, c := range map[string]rt.Compression{"hmac:gzip": rt.Gzip, "hmac:none": rt.Uncompressed} {
		spoil(name, encrypted(t, public, c, false, rt.File("a", 0o644, name)), func(options map[string]any) {
			options["hmac"] = make([]byte, 32)
		})
		_, err := f.Pull(t.Context(), PullRequest{Ref: host + name})
		wantErr(t, err, errdefs.ErrInvalidArgument, "the HMAC differs")
	}
	// With another nonce the bytes are authentic, and are garbage: what they are compressed with is not seen.
	spoil("nonce:1", encrypted(t, public, rt.Gzip, false, rt.File("a", 0o644, "nonce")), func(options map[string]any) {
		options["cipheroptions"] = map[string]any{"nonce": make([]byte, 16)}
	})
	_, err := f.Pull(t.Context(), PullRequest{Ref: host + "nonce:1"})
	wantErr(t, err, errdefs.ErrInvalidArgument)
	f.wantNothing()
}

// TestSomebodyElsesWrongKeySpoilsNoPull: an image of the same registry names the same blob, with a key that is wrong.
// Seen to fail where all who wait for a layer get the error of the pull that loads it.
func TestSomebodyElsesWrongKeySpoilsNoPull(t *testing.T) {
	f := newFixture(t)
	public, _ := f.decrypts()
	good := encrypted(t, public, rt.Gzip, false, rt.Random(1, "d", 3, 100<<10)...)
	wrong := *good
	wrong.Annotations = encrypted(t, public, rt.Gzip, false, rt.File("a", 0o644, "x")).Annotations
	img := f.push("good:1", rt.ReadyLayer(good))
	f.push("bad:1", rt.ReadyLayer(&wrong))
	f.reg.SetFaults(rt.Faults{BytesPerSecond: 200 << 10}) // so that the layer takes more than a second
	failed := make(chan error)
	go func() {
		_, err := f.Pull(t.Context(), PullRequest{Ref: host + "bad:1"})
		failed <- err
	}()
	f.eventually("the layer is being loaded with the wrong key", func() bool {
		f.index.mu.Lock()
		defer f.index.mu.Unlock()
		return len(f.index.jobs) > 0
	})
	got, err := f.Pull(t.Context(), PullRequest{Ref: host + "good:1"})
	if err != nil || got.ID != id(t, img) {
		t.Errorf("with the right key: %v, %v", got, err)
	}
	wantErr(t, <-failed, errdefs.ErrInvalidArgument, "the HMAC differs")
}

// layoutOf is an archive with the layout of an image, as skopeo copies one.
func layoutOf(t *testing.T, img v1.Image) io.Reader {
	t.Helper()
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string][]byte{
		"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`),
		"index.json": fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}]}`,
			ocispec.MediaTypeImageManifest, digestOf(t, img), len(manifest)),
		blobPath(digestOf(t, img)): manifest, blobPath(id(t, img)): config,
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		parts[blobPath(digestOf(t, l))] = data
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, data := range parts {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

func TestAnArchiveOfAnEncryptedImageIsImportedWithItsKey(t *testing.T) {
	f := newFixture(t)
	public, dir := f.decrypts()
	img := mustImage(t, rt.ReadyLayer(encrypted(t, public, rt.Zstd, false, rt.File("a", 0o644, "archive"))))
	f.keys("")
	_, err := f.ImportArchive(t.Context(), layoutOf(t, img))
	wantErr(t, err, errdefs.ErrFailedPrecondition, "is encrypted")
	f.wantNothing()
	f.keys(dir)
	list, err := f.ImportArchive(t.Context(), layoutOf(t, img))
	if err != nil || len(list) != 1 || f.content(list[0].ID, "a") != "archive" {
		t.Errorf("%v, %v", list, err)
	}
}
