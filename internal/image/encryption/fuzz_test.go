package encryption

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"io"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/encryption/encryptiontest"
)

// FuzzAnnotations: whatever an image says of its encryption, it is refused with an error that names the layer and has a
// class, or there is a secret that decrypts.
func FuzzAnnotations(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	l, err := encryptiontest.Encrypt(plain(), key.Public())
	if err != nil {
		f.Fatal(err)
	}
	wrapped, err := base64.StdEncoding.DecodeString(l.Annotations[ofJWE])
	if err != nil {
		f.Fatal(err)
	}
	public, err := base64.StdEncoding.DecodeString(l.Annotations[ofPublic])
	if err != nil {
		f.Fatal(err)
	}
	tries := 0
	private, err := Keys{key}.open(f.Context(), l.Annotations, &tries)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wrapped, public, private)
	f.Add([]byte(`{"recipients":[{},{"header":{"alg":"ECDH-ES+A256KW","epk":{"kty":"EC"}}}],"iv":""}`), []byte(`{}`),
		[]byte(`{"symkey":""}`))
	f.Add([]byte("a.b.c.d.e"), []byte(`{"cipher":"`+aes256+`","hmac":"","cipheroptions":{"nonce":null}}`), []byte("null"))
	f.Fuzz(func(t *testing.T, wrapped, public, private []byte) {
		encode := base64.StdEncoding.EncodeToString
		layer := ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageLayer + "+encrypted", Digest: digest.FromBytes(wrapped),
			Annotations: map[string]string{ofJWE: encode(wrapped), ofPublic: encode(public)},
		}
		secrets, err := Keys{key}.Open(t.Context(), []ocispec.Descriptor{layer})
		if err != nil {
			classified(t, err)
			if !strings.Contains(err.Error(), "layer "+layer.Digest.String()) {
				t.Errorf("the error does not name the layer: %v", err)
			}
		} else {
			decrypts(t, secrets[0])
		}
		secret, err := secretOf(private, encode(public))
		if err != nil {
			classified(t, err)
		} else {
			decrypts(t, secret)
		}
	})
}

func classified(t *testing.T, err error) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) && !errdefs.IsFailedPrecondition(err) && !errdefs.IsResourceExhausted(err) {
		t.Errorf("an error without a class: %v", err)
	}
}

func decrypts(t *testing.T, secret *Secret) {
	t.Helper()
	r, err := secret.Decrypt(bytes.NewReader([]byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(r); err != nil || len(data) != len(text) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	r.Authentic()
}
