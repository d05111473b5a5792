package encryption

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containers/ocicrypt/config"
	"github.com/go-jose/go-jose/v4"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/asroot"
	"berth/internal/image/encryption/encryptiontest"
)

func rsaKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// keyFile writes the file of a key to a directory.
func keyFile(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const text = "the bytes of a layer"

// TestALayerMayHaveManyRecipients, more than the library that reads them allows by itself.
func TestALayerMayHaveManyRecipients(t *testing.T) {
	key := ecKey(t)
	recipients := make([]crypto.PublicKey, 100)
	for i := range recipients {
		recipients[i] = ecKey(t).Public()
	}
	recipients[len(recipients)-1] = key.Public()
	l := must[*encryptiontest.Layer](t)(encryptiontest.Encrypt(plain(), recipients...))
	secrets, err := Keys{key}.Open(t.Context(), []ocispec.Descriptor{descriptor(l)})
	if err != nil || secrets[0] == nil {
		t.Errorf("%v, %v", secrets, err)
	}
}

// descriptor is that of a layer, encrypted.
func descriptor(l *encryptiontest.Layer) ocispec.Descriptor {
	d, _ := l.Descriptor()
	return ocispec.Descriptor{MediaType: string(d.MediaType), Digest: digest.Digest(d.Digest.String()), Size: d.Size,
		Annotations: maps.Clone(d.Annotations)}
}

func plain() v1.Layer { return static.NewLayer([]byte(text), types.OCIUncompressedLayer) }

// TestKeysAreReadInTheFormsThatOcicryptReads: what the library encrypts is decrypted with each of them.
func TestKeysAreReadInTheFormsThatOcicryptReads(t *testing.T) {
	asroot.Need(t, "keys of root")
	one, curve := rsaKey(t), ecKey(t)
	pkcs8 := must[[]byte](t)(x509.MarshalPKCS8PrivateKey(one))
	sec1 := must[[]byte](t)(x509.MarshalECPrivateKey(curve))
	block := func(kind string, data []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data})
	}
	for name, c := range map[string]struct {
		public any
		file   []byte
	}{
		"PKCS #8, PEM": {one.Public(), block("PRIVATE KEY", pkcs8)},
		"PKCS #8, DER": {one.Public(), pkcs8},
		"PKCS #8, EC":  {curve.Public(), must[[]byte](t)(x509.MarshalPKCS8PrivateKey(curve))},
		"PKCS #1, PEM": {one.Public(), block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(one))},
		"PKCS #1, DER": {one.Public(), x509.MarshalPKCS1PrivateKey(one)},
		"SEC 1, DER":   {curve.Public(), sec1},
		"SEC 1 of openssl": {curve.Public(),
			append(block("EC PARAMETERS", []byte{6, 1, 1}), block("EC PRIVATE KEY", sec1)...)},
		"a JSON Web Key":     {one.Public(), must[[]byte](t)(json.Marshal(jose.JSONWebKey{Key: one}))},
		"a JSON Web Key, EC": {curve.Public(), must[[]byte](t)(json.Marshal(jose.JSONWebKey{Key: curve}))},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			keyFile(t, dir, "a.pem", block("PRIVATE KEY", must[[]byte](t)(x509.MarshalPKCS8PrivateKey(rsaKey(t)))))
			keyFile(t, dir, "b.key", c.file)
			keyFile(t, dir, ".hidden", []byte("no key"))
			if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
				t.Fatal(err)
			}
			keys, err := ReadKeys(dir)
			if err != nil || len(keys) != 2 {
				t.Fatalf("%d keys, %v", len(keys), err)
			}
			other := ecKey(t)
			l, err := encryptiontest.Encrypt(plain(), other.Public(), c.public)
			if err != nil {
				t.Fatal(err)
			}
			layers := []ocispec.Descriptor{{MediaType: ocispec.MediaTypeImageLayer}, descriptor(l)}
			secrets, err := keys.Open(t.Context(), layers)
			if err != nil || secrets[0] != nil {
				t.Fatalf("%v, %v", secrets, err)
			}
			blob := must[io.ReadCloser](t)(l.Compressed())
			r := must[*Reader](t)(secrets[1].Decrypt(blob))
			if got, err := io.ReadAll(r); err != nil || string(got) != text || !r.Authentic() {
				t.Errorf("%q, authentic: %v, %v", got, r.Authentic(), err)
			}
			spoilt := must[*Reader](t)(secrets[1].Decrypt(bytes.NewReader(make([]byte, len(text)))))
			if _, err := io.ReadAll(spoilt); err != nil || spoilt.Authentic() {
				t.Errorf("other bytes are authentic; %v", err)
			}
		})
	}
}

func TestFilesThatAreNoKeysAreNamed(t *testing.T) {
	asroot.Need(t, "chown")
	good := must[[]byte](t)(x509.MarshalPKCS8PrivateKey(ecKey(t)))
	for name, c := range map[string]struct {
		spoil func(path string) error
		word  string
	}{
		"others may read it":  {func(p string) error { return os.Chmod(p, 0o644) }, "mode 0644"},
		"a group may read it": {func(p string) error { return os.Chmod(p, 0o640) }, "mode 0640"},
		"another's":           {func(p string) error { return os.Chown(p, 4711, 0) }, "belong to root"},
		"no key":              {func(p string) error { return os.WriteFile(p, []byte("text"), 0o600) }, "no private key"},
		"a public key": {func(p string) error {
			return os.WriteFile(p, must[[]byte](t)(json.Marshal(jose.JSONWebKey{Key: ecKey(t).Public()})), 0o600)
		}, "no private key"},
		"a long file": {func(p string) error { return os.Truncate(p, 1<<20) }, "1048576 bytes"},
		"a FIFO": {func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)) },
			"no regular file"},
		"a link to nothing": {func(p string) error { return errors.Join(os.Remove(p), os.Symlink("nowhere", p)) },
			"no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			keyFile(t, dir, "good", good)
			path := keyFile(t, dir, "bad", good)
			if err := c.spoil(path); err != nil {
				t.Fatal(err)
			}
			_, err := ReadKeys(dir)
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), path) ||
				!strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), "good") {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, err := ReadKeys("/no/such"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("error %v", err)
	}
	dir := t.TempDir()
	for i := range maxKeys + 1 {
		keyFile(t, dir, fmt.Sprint(i), good)
	}
	if _, err := ReadKeys(dir); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "33 keys") {
		t.Errorf("error %v", err)
	}
}

// TestWhatAnImageSaysOfItsEncryptionIsNotBelieved: what cannot be is refused, and the time for it is bounded. Seen to
// fail without the bound on the recipients.
func TestWhatAnImageSaysOfItsEncryptionIsNotBelieved(t *testing.T) {
	key := rsaKey(t)
	l, err := encryptiontest.Encrypt(plain(), key.Public())
	if err != nil {
		t.Fatal(err)
	}
	encoded := func(v any) string { return base64.StdEncoding.EncodeToString(must[[]byte](t)(json.Marshal(v))) }
	wrapped := func(v any) string {
		encrypter := must[jose.Encrypter](t)(jose.NewEncrypter(jose.A256GCM,
			jose.Recipient{Algorithm: jose.RSA_OAEP, Key: key.Public()}, nil))
		message := must[*jose.JSONWebEncryption](t)(encrypter.Encrypt(must[[]byte](t)(json.Marshal(v))))
		return base64.StdEncoding.EncodeToString([]byte(message.FullSerialize()))
	}
	many := map[string]any{"ciphertext": "YQ", "iv": "YQ", "tag": "YQ", "protected": "e30",
		"recipients": make([]map[string]any, maxTries+1)}
	for name, c := range map[string]struct {
		set  map[string]string
		want error
		word string
	}{
		"no annotation": {map[string]string{ofJWE: ""},
			errdefs.ErrInvalidArgument, "no annotation has its key"},
		"another scheme": {map[string]string{ofJWE: "", prefixOfKeys + "pgp": "x"},
			errdefs.ErrFailedPrecondition, "for pgp"},
		"a key provider": {map[string]string{ofJWE: "", prefixOfKeys + "provider.kms": "x"},
			errdefs.ErrFailedPrecondition, "provider.kms"},
		"no base64": {map[string]string{ofJWE: "*"}, errdefs.ErrInvalidArgument, "base64"},
		"no JWE": {map[string]string{ofJWE: encoded("text")},
			errdefs.ErrInvalidArgument, "does not parse"},
		"a long key": {map[string]string{ofJWE: encoded(strings.Repeat("x", maxWrapped))}, errdefs.ErrResourceExhausted,
			"262146 bytes"},
		"many recipients": {map[string]string{ofJWE: encoded(many)},
			errdefs.ErrResourceExhausted, "recipients"},
		"many keys": {map[string]string{ofJWE: strings.Repeat(encoded(many)+",", 3)},
			errdefs.ErrResourceExhausted, ""},
		"a key of a word": {map[string]string{ofJWE: wrapped("word")},
			errdefs.ErrInvalidArgument, "does not parse"},
		"a short key": {map[string]string{ofJWE: wrapped(map[string]any{"symkey": "YQ=="})},
			errdefs.ErrInvalidArgument, "1 bytes"},
		"no options": {map[string]string{ofPublic: ""}, errdefs.ErrInvalidArgument, "pubopts"},
		"options of a word": {map[string]string{ofPublic: encoded("word")},
			errdefs.ErrInvalidArgument, "pubopts"},
		"another cipher": {map[string]string{ofPublic: encoded(map[string]string{"cipher": "ROT13"})},
			errdefs.ErrInvalidArgument, "ROT13"},
	} {
		t.Run(name, func(t *testing.T) {
			d := descriptor(l)
			maps.Copy(d.Annotations, c.set)
			maps.DeleteFunc(d.Annotations, func(_, v string) bool { return v == "" })
			_, err := Keys{key}.Open(t.Context(), []ocispec.Descriptor{d})
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.word) ||
				!strings.Contains(err.Error(), "layer "+d.Digest.String()) {
				t.Errorf("error %v", err)
			}
		})
	}
	d := descriptor(l)
	_, err = Keys{rsaKey(t), ecKey(t)}.Open(t.Context(), []ocispec.Descriptor{d})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "none of the 2 keys") {
		t.Errorf("with other keys: %v", err)
	}
	// A recipient who was added later has an entry of its own, behind a comma.
	later, err := config.EncryptWithJwe([][]byte{pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY",
		Bytes: must[[]byte](t)(x509.MarshalPKIXPublicKey(ecKey(t).Public()))})})
	if err != nil {
		t.Fatal(err)
	}
	other, err := encryptiontest.EncryptWith(plain(), later.EncryptConfig)
	if err != nil {
		t.Fatal(err)
	}
	d.Annotations[ofJWE] = other.Annotations[ofJWE] + "," + d.Annotations[ofJWE]
	if _, err := (Keys{key}).Open(t.Context(), []ocispec.Descriptor{d}); err != nil {
		t.Errorf("with two entries: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Keys{key}).Open(ctx, []ocispec.Descriptor{d}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}
