package export

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"berth/internal/disk"
	"berth/internal/image"
	"berth/internal/image/registry"
	"berth/internal/liblog"
	"berth/internal/model"
)

// maxUploads is how many layers are packed and pushed at a time: packing takes a processor each.
const maxUploads = 2

// Push pushes an image to the registry of its name, or of another name. Layers that the registry has, there or in a
// repository that the image was pulled from, are not sent. Where it has them all as they were pulled, the image gets
// the digest that it was pulled with. Others are made again and packed by gzip, always to the same bytes, and the
// manifest is new; the image's ID is the same in either case. An artifact is pushed as it was pulled.
func (e *Exporter) Push(ctx context.Context, req model.PushRequest) (*model.Pushed, error) {
	begin := time.Now()
	to, err := destination(req)
	if err != nil {
		return nil, err
	}
	holder := fmt.Sprintf("push:%d", e.exports.Add(1))
	defer e.store.Release(holder)
	x, err := e.find(ctx, req.Image, holder)
	if err != nil {
		return nil, fmt.Errorf("push image %s: %w", req.Image, err)
	}
	img, err := e.store.Get(ctx, x.id)
	if err != nil {
		return nil, fmt.Errorf("push image %s: %w", req.Image, err)
	}
	// An ID and its start can be read as names of images of Docker Hub.
	if req.Name == "" && !slices.Contains(img.RepoTags, to.String()) {
		return nil, fmt.Errorf("push image %s: this is an ID, so the name to push it to has to be given: %w", req.Image,
			errdefs.ErrInvalidArgument)
	}
	repo, err := e.store.Repository(ctx, to, req.Auth)
	if err != nil {
		return nil, fmt.Errorf("push image %s to %s: %w", req.Image, to, err)
	}
	defer repo.Close()
	p := &pushing{exporter: e, image: x, repo: repo, from: sources(to, img), report: req.Progress}
	if err := p.push(ctx, digest.Digest(img.Manifest)); err != nil {
		return nil, fmt.Errorf("push image %s to %s: %w", req.Image, to, err)
	}
	e.log.Info("image pushed", "image", to.String(), "image_id", x.id, "bytes", p.sent,
		"took_ms", liblog.Milliseconds(time.Since(begin)))
	return &model.Pushed{Name: to.String(), Digest: x.desc.Digest.String()}, nil
}

// destination is the name that is pushed to, with a tag.
func destination(req model.PushRequest) (reference.Named, error) {
	name := cmp.Or(req.Name, req.Image)
	to, err := reference.ParseDockerRef(name)
	if err != nil {
		return nil, fmt.Errorf("push to %q: %w: %w", name, err, errdefs.ErrInvalidArgument)
	}
	if _, tagged := to.(reference.Tagged); !tagged {
		return nil, fmt.Errorf("push to %q: it has to have a tag, since the digest is the image's affair: %w", name,
			errdefs.ErrInvalidArgument)
	}
	return to, nil
}

// sources are the repositories of a registry from which an image was pulled: it may have their layers elsewhere, too.
func sources(to reference.Named, img *model.Image) []string {
	var from []string
	for _, name := range slices.Concat(img.RepoTags, img.RepoDigests) {
		named, err := reference.ParseDockerRef(name)
		if err == nil && reference.Domain(named) == reference.Domain(to) &&
			!slices.Contains(from, reference.Path(named)) && !strings.Contains(reference.Path(named), ",") {
			from = append(from, reference.Path(named))
		}
	}
	return from
}

// pushing is an image on its way to a registry.
type pushing struct {
	exporter *Exporter
	image    *exported
	repo     *registry.Repository
	from     []string // repositories of the registry that may have layers
	report   func(model.PushProgress)

	mu   sync.Mutex // guards report and sent
	sent int64      // bytes
}

func (p *pushing) push(ctx context.Context, pulledAs digest.Digest) error {
	x := p.image
	if x.blobs != nil {
		return p.pushArtifact(ctx)
	}
	var was ocispec.Manifest
	if err := json.Unmarshal(x.pulled, &was); err != nil {
		return fmt.Errorf("manifest of the image: %w", err)
	}
	layers := make([]ocispec.Descriptor, len(x.infos))
	if len(was.Layers) == len(x.infos) && len(p.from) > 0 {
		if err := p.take(ctx, was.Layers, layers); err != nil {
			return err
		}
	}
	asPulled := digest.FromBytes(x.pulled) == pulledAs && len(was.Layers) == len(layers) &&
		!slices.ContainsFunc(layers, func(d ocispec.Descriptor) bool { return d.Digest == "" })
	if asPulled {
		x.manifest, x.desc = x.pulled, ocispec.Descriptor{
			MediaType: cmp.Or(was.MediaType, ocispec.MediaTypeImageManifest), Digest: pulledAs, Size: int64(len(x.pulled)),
		}
	} else {
		if err := x.plain(); err != nil {
			return err
		}
		if err := p.send(ctx, layers); err != nil {
			return err
		}
		if err := x.setManifest(layers); err != nil {
			return err
		}
	}
	config := ocispec.Descriptor{
		MediaType: cmp.Or(was.Config.MediaType, ocispec.MediaTypeImageConfig), Digest: digest.Digest(x.id),
		Size: int64(len(x.config)),
	}
	if err := p.document(ctx, "configuration", config, x.config); err != nil {
		return err
	}
	return p.document(ctx, "manifest", x.desc, x.manifest)
}

// pushArtifact pushes an artifact as it was pulled.
func (p *pushing) pushArtifact(ctx context.Context) error {
	if err := p.image.keepManifest(); err != nil {
		return err
	}
	group, uploads := errgroup.WithContext(ctx)
	group.SetLimit(maxUploads)
	for _, b := range p.image.blobs {
		group.Go(func() error {
			if err := p.sendBlob(uploads, b); err != nil {
				return fmt.Errorf("blob %s: %w", b.Digest, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return p.document(ctx, "manifest", p.image.desc, p.image.manifest)
}

// sendBlob pushes a blob of an artifact.
func (p *pushing) sendBlob(ctx context.Context, b image.Blob) error {
	file, err := os.Open(b.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	// The type is the manifest's to say. Here it would decide where the blob is sent.
	desc := ocispec.Descriptor{MediaType: "application/octet-stream", Digest: b.Digest, Size: b.Size}
	p.tell(model.PushProgress{Layer: b.Digest.String(), Phase: model.PullWaiting, Total: b.Size})
	there, err := p.repo.Push(ctx, registry.Content{Desc: desc, Reader: file, From: p.from, Progress: func(n int64) {
		p.tell(model.PushProgress{Layer: b.Digest.String(), Phase: model.PullLoading, Done: n, Total: b.Size})
	}})
	if err != nil {
		return err
	}
	p.ended(desc, b.Digest, there)
	return nil
}

// ended tells that a blob is in the registry, which had it already if it was there.
func (p *pushing) ended(desc ocispec.Descriptor, layer digest.Digest, there bool) {
	end := model.PushProgress{Layer: layer.String(), Phase: model.PullDone, Done: desc.Size, Total: desc.Size}
	if there {
		end.Phase = model.PullPresent
	} else {
		p.mu.Lock()
		p.sent += desc.Size
		p.mu.Unlock()
	}
	p.tell(end)
}

func (p *pushing) document(ctx context.Context, what string, desc ocispec.Descriptor, data []byte) error {
	if _, err := p.repo.Push(ctx, registry.Content{Desc: desc, Reader: bytes.NewReader(data)}); err != nil {
		return fmt.Errorf("%s %s: %w", what, desc.Digest, err)
	}
	return nil
}

// take fills in the layers that the registry has as they were pulled.
func (p *pushing) take(ctx context.Context, was, layers []ocispec.Descriptor) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxUploads)
	for i, desc := range was {
		if images.IsNonDistributable(desc.MediaType) {
			continue
		}
		desc = ocispec.Descriptor{MediaType: packed(desc.MediaType), Digest: desc.Digest, Size: desc.Size}
		group.Go(func() error {
			_, err := p.repo.Push(ctx, registry.Content{Desc: desc, From: p.from})
			switch {
			case errdefs.IsNotFound(err):
				return nil
			case err != nil:
				return fmt.Errorf("layer %s: %w", desc.Digest, err)
			}
			layers[i] = desc
			p.tell(model.PushProgress{Layer: desc.Digest.String(), Phase: model.PullPresent, Total: desc.Size})
			return nil
		})
	}
	return group.Wait()
}

// packed is the media type of the OCI for one of Docker's.
func packed(mediaType string) string {
	switch mediaType {
	case images.MediaTypeDockerSchema2LayerGzip:
		return ocispec.MediaTypeImageLayerGzip
	case images.MediaTypeDockerSchema2LayerZstd:
		return ocispec.MediaTypeImageLayerZstd
	case images.MediaTypeDockerSchema2Layer:
		return ocispec.MediaTypeImageLayer
	}
	return mediaType
}

// send packs and pushes the layers that are not filled in.
func (p *pushing) send(ctx context.Context, layers []ocispec.Descriptor) error {
	if err := p.image.locate(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxUploads)
	for i, l := range p.image.layers {
		if layers[i].Digest != "" {
			continue
		}
		p.tell(model.PushProgress{Layer: l.digest.String(), Phase: model.PullWaiting, Total: l.size})
		group.Go(func() (err error) {
			layers[i], err = p.sendLayer(ctx, l)
			return err
		})
	}
	return group.Wait()
}

// sendLayer packs a layer into a file without a name, since its digest is asked for before its bytes, and pushes it.
func (p *pushing) sendLayer(ctx context.Context, l *layer) (ocispec.Descriptor, error) {
	file, err := p.exporter.store.Spool()
	if err != nil {
		return ocispec.Descriptor{}, disk.Exhausted(err)
	}
	defer file.Close()
	desc, err := l.pack(ctx, p.exporter, file)
	if err != nil {
		return ocispec.Descriptor{}, disk.Exhausted(err)
	}
	progress := func(n int64) {
		p.tell(model.PushProgress{Layer: l.digest.String(), Phase: model.PullLoading, Done: n, Total: desc.Size})
	}
	there, err := p.repo.Push(ctx, registry.Content{Desc: desc, Reader: file, Progress: progress})
	if err != nil {
		return desc, fmt.Errorf("layer %s: %w", l.digest, err)
	}
	p.ended(desc, l.digest, there)
	return desc, nil
}

func (p *pushing) tell(progress model.PushProgress) {
	if p.report == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report(progress)
}

// pack writes the tar of a layer, made again and packed by gzip, to a file.
func (l *layer) pack(ctx context.Context, e *Exporter, file *os.File) (ocispec.Descriptor, error) {
	hash := digest.Canonical.Digester()
	out := &counted{w: io.MultiWriter(file, hash.Hash())}
	gz := gzip.NewWriter(out) // its head has no name and no time: the same layer makes the same blob
	if err := errors.Join(l.write(ctx, e.children, gz), gz.Close()); err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: hash.Digest(), Size: out.n}, nil
}
