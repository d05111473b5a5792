package registrytest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"sync"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// blobs keeps the blobs of all repositories in memory, by digest.
type blobs struct {
	mu sync.Mutex
	m  map[string][]byte
}

func newBlobs() *blobs { return &blobs{m: map[string][]byte{}} }

func (b *blobs) get(digest string) ([]byte, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, ok := b.m[digest]
	return data, ok
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (b *blobs) put(data []byte) string {
	digest := digestOf(data)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.m[digest] = data
	return digest
}

// putLayer stores a layer's bytes under the digest that the layer claims.
func (b *blobs) putLayer(l v1.Layer) error {
	digest, err := l.Digest()
	if err != nil {
		return err
	}
	if _, ok := b.get(digest.String()); ok {
		return nil
	}
	rc, err := l.Compressed()
	if err != nil {
		return err
	}
	defer rc.Close()
	data, err := io.ReadAll(rc)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.m[digest.String()] = data
	return nil
}

// Get, Stat and Put serve pushes over HTTP.

func (b *blobs) Get(_ context.Context, _ string, h v1.Hash) (io.ReadCloser, error) {
	data, ok := b.get(h.String())
	if !ok {
		return nil, ggcr.ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (b *blobs) Stat(_ context.Context, _ string, h v1.Hash) (int64, error) {
	data, ok := b.get(h.String())
	if !ok {
		return 0, ggcr.ErrNotFound
	}
	return int64(len(data)), nil
}

func (b *blobs) Put(_ context.Context, _ string, h v1.Hash, rc io.ReadCloser) error {
	defer rc.Close()
	data, err := io.ReadAll(rc)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.m[h.String()] = data
	return nil
}
