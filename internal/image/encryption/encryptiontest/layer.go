// Package encryptiontest encrypts layers of images with ocicrypt, as skopeo and nerdctl do, for tests.
package encryptiontest

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"

	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/config"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Layer is a layer that is encrypted.
type Layer struct {
	plain       v1.Layer
	data        []byte
	digest      v1.Hash
	mediaType   types.MediaType
	Annotations map[string]string
}

// Encrypt encrypts a layer for the owners of public keys.
func Encrypt(plain v1.Layer, recipients ...crypto.PublicKey) (*Layer, error) {
	var keys [][]byte
	for _, key := range recipients {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	}
	cc, err := config.EncryptWithJwe(keys)
	if err != nil {
		return nil, err
	}
	return EncryptWith(plain, cc.EncryptConfig)
}

// EncryptWith encrypts a layer as a configuration of ocicrypt says.
func EncryptWith(plain v1.Layer, ec *config.EncryptConfig) (*Layer, error) {
	packed, err := plain.Compressed()
	if err != nil {
		return nil, err
	}
	defer packed.Close()
	was, err := plain.Digest()
	if err != nil {
		return nil, err
	}
	mediaType, err := plain.MediaType()
	if err != nil {
		return nil, err
	}
	r, finish, err := ocicrypt.EncryptLayer(ec, packed, ocispec.Descriptor{Digest: digest.Digest(was.String())})
	if err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	l := &Layer{plain: plain, mediaType: mediaType + "+encrypted"}
	if l.data, err = io.ReadAll(r); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(l.data)
	l.digest = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
	l.Annotations, err = finish()
	return l, err
}

func (l *Layer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l *Layer) DiffID() (v1.Hash, error)             { return l.plain.DiffID() }
func (l *Layer) Size() (int64, error)                 { return int64(len(l.data)), nil }
func (l *Layer) MediaType() (types.MediaType, error)  { return l.mediaType, nil }
func (l *Layer) Uncompressed() (io.ReadCloser, error) { return l.plain.Uncompressed() }
func (l *Layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.data)), nil
}

// Descriptor is what a manifest has of the layer.
func (l *Layer) Descriptor() (*v1.Descriptor, error) {
	return &v1.Descriptor{MediaType: l.mediaType, Size: int64(len(l.data)), Digest: l.digest, Annotations: l.Annotations},
		nil
}
