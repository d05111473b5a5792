package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/registrytest"
)

const layerName = "bench/layer:1"

// pullsOfALayer measures pulls of an image of one layer from a registry that limits each connection, as object stores
// do.
func pullsOfALayer(ctx context.Context, o *options, registry *registrytest.Registry,
	turns func(rounds int, what string, turn func(*peer) error) error, r *report) error {
	progress("packing a layer of %d MiB", o.layerMiB)
	image, err := largeLayer(o.layerMiB)
	if err != nil {
		return err
	}
	if err := registry.Push(layerName, image); err != nil {
		return err
	}
	runtime.GC()
	registry.SetFaults(registrytest.Faults{BytesPerSecond: o.layerRate * 1e6, Path: "/blobs/"})
	defer registry.SetFaults(registrytest.Faults{})
	return turns(o.pulls, "pull of one large layer", func(p *peer) error {
		return p.pull(ctx, registry, layerName, image, r.of(p), rowLayer)
	})
}

// largeLayer has one layer of so many MiB of gzip. Its files are hardly smaller when they are packed, as those of
// models: the pull is to be limited by the registry, and not by a decompressor.
func largeLayer(mib int) (v1.Image, error) {
	const file = 16 << 20
	source := rand.NewChaCha8([32]byte{2})
	entries := []registrytest.Entry{registrytest.Dir("model", 0o755)}
	for i, left := 0, mib<<20; left > 0; i++ {
		body := make([]byte, min(left, file))
		_, _ = source.Read(body)
		entry := registrytest.File(fmt.Sprintf("model/%05d", i), 0o644, "")
		entry.Body = body
		entries = append(entries, entry)
		left -= len(body)
	}
	tar, err := registrytest.Tar(entries...)
	if err != nil {
		return nil, err
	}
	layer, err := registrytest.NewLayer(tar, registrytest.Gzip, false)
	if err != nil {
		return nil, err
	}
	return registrytest.Image(registrytest.ReadyLayer(layer))
}
