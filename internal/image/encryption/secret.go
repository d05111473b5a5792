package encryption

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"

	"github.com/containerd/errdefs"
)

// Secret is what a layer is decrypted with.
type Secret struct {
	key   []byte // 32 bytes
	nonce []byte // 16 bytes
	hmac  []byte // 32 bytes: SHA-256 with the key, of the encrypted bytes
}

// check refuses what no layer is encrypted with.
func (s *Secret) check() error {
	if len(s.key) != 32 || len(s.nonce) != aes.BlockSize || len(s.hmac) != sha256.Size {
		return fmt.Errorf("it has a key of %d bytes, a nonce of %d and an HMAC of %d, and not of 32, %d and %d: %w",
			len(s.key), len(s.nonce), len(s.hmac), aes.BlockSize, sha256.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Reader decrypts a layer.
type Reader struct {
	r      io.Reader
	stream cipher.Stream
	mac    hash.Hash
	want   []byte
}

// Decrypt decrypts what is read from r.
func (s *Secret) Decrypt(r io.Reader) (*Reader, error) {
	block, err := aes.NewCipher(s.key)
	if err != nil {
		return nil, err
	}
	return &Reader{r: r, stream: cipher.NewCTR(block, s.nonce), mac: hmac.New(sha256.New, s.key), want: s.hmac}, nil
}

func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	_, _ = r.mac.Write(p[:n])
	r.stream.XORKeyStream(p[:n], p[:n])
	return n, err
}

// Authentic tells whether what was read, which has to be all, is what was encrypted with the key.
func (r *Reader) Authentic() bool { return hmac.Equal(r.mac.Sum(nil), r.want) }
