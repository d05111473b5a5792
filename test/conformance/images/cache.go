package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// refName is the annotation by which an OCI image layout names an image.
const refName = "org.opencontainers.image.ref.name"

// Builder makes images from packages, which it keeps in a directory.
type Builder func(ctx context.Context, packages string) (Images, error)

// Cached are the images that dir holds as an OCI image layout, if this program made them from the packages that are
// there; else build makes them, and they are kept in dir.
func Cached(ctx context.Context, dir, packages string, build Builder) (Images, error) {
	key, err := cacheKey(packages)
	if err != nil {
		return nil, err
	}
	keyFile := filepath.Join(dir, "key")
	if data, err := os.ReadFile(keyFile); err == nil && string(data) == key {
		return Load(dir)
	}
	built, err := build(ctx, packages)
	if err != nil {
		return nil, err
	}
	if err := built.save(dir); err != nil {
		return nil, err
	}
	if key, err = cacheKey(packages); err != nil {
		return nil, err
	}
	return built, os.WriteFile(keyFile, []byte(key), 0o644)
}

// cacheKey stands for all that images are made from: this program and the packages.
func cacheKey(packages string) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	file, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	names, err := filepath.Glob(filepath.Join(packages, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		fmt.Fprintln(hash, filepath.Base(name))
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func (i Images) save(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for name, image := range i {
		if err := at.AppendImage(image, layout.WithAnnotations(map[string]string{refName: name})); err != nil {
			return fmt.Errorf("keep %s: %w", name, err)
		}
	}
	return nil
}

// Load is what Cached has kept in dir.
func Load(dir string) (Images, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	built := Images{}
	for _, d := range manifest.Manifests {
		var image v1.Image
		if image, err = index.Image(d.Digest); err != nil {
			return nil, err
		}
		built[d.Annotations[refName]] = image
	}
	return built, nil
}
