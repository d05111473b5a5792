package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"berth/internal/disk"
	"berth/internal/image/encryption"
	"berth/internal/image/progress"
	"berth/internal/image/source"
	"berth/internal/model"
)

// obtain gets the layers of an image, from a registry or an archive, and records the image. named is its name in the
// registry; nil: it comes from an archive.
func (s *Store) obtain(ctx context.Context, now *inForce, named reference.Named, src *source.Image, fetch fetcher,
	report func(model.PullProgress)) (*model.Image, error) {
	parts := src.Blobs()
	o := &obtaining{
		s: s, now: now, src: src, fetch: fetch, parts: parts, keys: partsOf(src),
		secrets: make([]*encryption.Secret, len(parts)), layers: make([]*layer, len(parts)),
		sum: total{limits: &now.Limits},
	}
	if src.Artifact == nil {
		var err error
		if o.secrets, err = s.secrets(ctx, now, src.Layers); err != nil {
			return nil, err
		}
	}
	o.bars = progress.New(parts, report)
	defer o.bars.Close()
	r, err := o.image(ctx, named)
	if e := o.release(comesAgain(ctx, err)); e != nil { // of an image that is recorded: it needs its layers itself now
		s.log.Warn("leftover of a pull is still there", "error", e)
	}
	if err != nil {
		if disk.Full(err) { // what no image needs makes room first
			s.dropLeftovers()
		}
		return nil, err
	}
	s.syncs.Want()
	img, err := s.model(r)
	if err == nil {
		img.Checkpoint = src.Checkpoint
	}
	return img, err
}

// obtaining is an image whose layers are being loaded. Only load uses more than one goroutine.
type obtaining struct {
	s     *Store
	now   *inForce
	src   *source.Image
	fetch fetcher

	parts   []ocispec.Descriptor
	keys    []jobKey             // of parts
	secrets []*encryption.Secret // of parts; nil: the part is not encrypted. Blobs of an artifact are kept as they are
	bars    *progress.Bars
	sum     total

	// The pull has a reference to each of the layers and origins that are not nil: see release.
	layers  []*layer // of parts, and below them the tree of an artifact's files
	remote  int      // how many of layers, from the lowest on, the snapshotter has
	origins []*layer // those from which variants among layers were made
}

// image gets all layers, and records the image.
func (o *obtaining) image(ctx context.Context, named reference.Named) (*imageRecord, error) {
	if err := o.prepare(ctx, named); err != nil {
		return nil, err
	}
	if err := o.load(ctx); err != nil {
		return nil, err
	}
	depends := func(l *layer) bool { return l.Depends }
	if o.remote > 0 && slices.ContainsFunc(o.layers[o.remote:], depends) {
		// A layer takes attributes of directories from those below, which berthd does not read where they are remote.
		if err := o.unpackAll(ctx); err != nil {
			return nil, err
		}
	}
	r, err := o.record(ctx)
	if errors.Is(err, errOtherRemote) {
		if err := o.unpackAll(ctx); err != nil {
			return nil, err
		}
		return o.record(ctx)
	}
	return r, err
}

// prepare takes the lowest layers from the snapshotter, as far as it has them.
func (o *obtaining) prepare(ctx context.Context, named reference.Named) error {
	remote, err := o.s.prepareRemote(ctx, named, o.src)
	o.remote = copy(o.layers, remote)
	return err
}

// load gets those of the layers that are not there yet.
func (o *obtaining) load(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(o.now.MaxConcurrentDownloads)
	for i, d := range o.parts {
		if o.layers[i] != nil {
			o.bars.Layers[i].Set(model.PullPresent)
			continue
		}
		g.Go(func() error {
			if gctx.Err() != nil {
				return gctx.Err()
			}
			from := packedLayer{desc: d, fetch: o.fetch, secret: o.secrets[i]}
			l, err := o.s.layer(gctx, o.now, o.keys[i], from, o.bars.Layers[i])
			if o.layers[i] = l; err != nil {
				return err
			}
			if o.src.Artifact != nil && l.Length != uint64(d.Size) { // another manifest has brought it here
				return fmt.Errorf("blob %s has %d bytes, the manifest says %d: %w", d.Digest, l.Length, d.Size,
					errdefs.ErrFailedPrecondition)
			}
			return o.sum.add(&l.layerRecord)
		})
	}
	return g.Wait()
}

// unpackAll gets all layers unpacked, also those that the snapshotter has.
func (o *obtaining) unpackAll(ctx context.Context) error {
	err := o.s.giveBack(o.layers[:o.remote])
	if o.remote = 0; err != nil {
		return err
	}
	return o.load(ctx)
}

// record makes of the layers what the image needs beside them, and records the image. The error is errOtherRemote if
// the layers have to be unpacked first.
func (o *obtaining) record(ctx context.Context) (*imageRecord, error) {
	var err error
	if o.src.Artifact == nil {
		o.origins, err = o.s.resolveVariants(ctx, o.now, o.layers)
	} else {
		var tree *layer
		if tree, err = o.s.fileTree(ctx, o.src, o.layers); tree != nil {
			o.layers = append([]*layer{tree}, o.layers...)
		}
	}
	if err != nil {
		return nil, err
	}
	return o.s.record(o.src, o.layers, o.origins)
}

// comesAgain tells whether a pull that has failed is likely to succeed when it is repeated with the same layers: its
// client has gone away, as a kubelet does that is restarted, or berthd ends, or the registry is away.
func comesAgain(ctx context.Context, err error) bool {
	return err != nil && !disk.Full(err) && (ctx.Err() != nil || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) || errdefs.IsUnavailable(err))
}

// release gives up the references of the pull. If it is expected to come again, the layers that are complete stay for
// as long as those that a killed berthd has left.
func (o *obtaining) release(again bool) error {
	o.s.index.mu.Lock()
	var unused []*layer
	kept, now := 0, time.Now()
	for _, l := range slices.Concat(o.layers, o.origins) {
		switch {
		case l == nil:
		case again:
			unused = append(unused, o.s.index.keep(l, now)...)
			if l.adopted && l.refs == 0 {
				kept++
			}
		default:
			unused = append(unused, o.s.index.unref(l)...)
		}
	}
	o.s.index.mu.Unlock()
	if kept > 0 {
		o.s.log.Info("complete layers of a pull that has ended early are kept for the next one", "layers", kept)
		o.s.expireLater()
	}
	return o.s.removeLayers(context.Background(), unused)
}
