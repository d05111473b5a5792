package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/compression"
	"berth/internal/disk"
	"berth/internal/image/archive"
	"berth/internal/image/source"
	"berth/internal/image/unpack"
	"berth/internal/jail"
	"berth/internal/jail/ring"
	"berth/internal/model"
)

// ImportArchive loads the images of an archive as `docker save` writes it, or of an OCI image layout in a tar,
// packed by gzip or zstd or not at all. Images get the names that the archive gives them. The archive is kept beside
// the store while it is loaded, since its parts come in any order.
func (s *Store) ImportArchive(ctx context.Context, r io.Reader) ([]*model.Image, error) {
	return s.ImportArchiveKeeping(ctx, r, nil)
}

// ImportArchiveKeeping is ImportArchive where keeps tells whether a tag stays with the image of this ID, which has it,
// though the archive gives the tag to another image. An image is not loaded for the sake of such a tag. keeps is called
// with the index locked; nil: all tags move.
func (s *Store) ImportArchiveKeeping(
	ctx context.Context, r io.Reader, keeps func(tag, id string) bool,
) ([]*model.Image, error) {
	list, err := s.importArchive(ctx, r, keeps)
	if err != nil {
		return nil, brief(fmt.Errorf("import archive: %w", disk.Exhausted(err)))
	}
	return list, nil
}

func (s *Store) importArchive(
	ctx context.Context, r io.Reader, keeps func(tag, id string) bool,
) ([]*model.Image, error) {
	now := s.now.Load()
	a, err := now.unpacker.spool(ctx, s.root, r)
	if err != nil {
		return nil, err
	}
	defer a.file.Close()
	var sources []*source.Image
	switch {
	// An archive that is both is read as containerd reads it: manifest.json has no annotations of manifests.
	case a.has(ocispec.ImageLayoutFile) && a.has("index.json"):
		sources, err = layoutArchive(ctx, now, a)
	case a.has("manifest.json"):
		sources, err = dockerArchive(ctx, now, a)
	case a.has("index.json"):
		sources, err = layoutArchive(ctx, now, a)
	default:
		err = fmt.Errorf("there is neither manifest.json nor index.json in it: %w", errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, err
	}
	var list []*model.Image
	for _, src := range sources {
		src.Keeps = keeps
		if s.index.keepsTag(src) {
			continue
		}
		a.unpacked(src)
		fetch := func(_ context.Context, d ocispec.Descriptor, not map[string]bool) (blob, error) {
			part, ok := a.blobs[d.Digest]
			if !ok || len(not) > 0 {
				return nil, fmt.Errorf("blob %s is not in the archive: %w", d.Digest, errdefs.ErrNotFound)
			}
			return archived{io.NewSectionReader(a.file, part.offset, part.size)}, nil
		}
		img, err := s.obtain(ctx, now, nil, src, fetch, nil)
		if err != nil {
			return nil, err
		}
		list = append(list, img)
	}
	return list, nil
}

// unpacked has an image made of the tars of layers that the archive has under their diff IDs, and not as the manifest
// names them: some tools keep no layer as it was pulled. The manifest pins the configuration, and that the diff IDs, so
// nothing is trusted that is not verified.
func (a *archiveFile) unpacked(src *source.Image) {
	for i, l := range src.Layers {
		if _, ok := a.blobs[l.Digest]; ok {
			continue
		}
		if plain, ok := a.blobs[src.DiffIDs[i]]; ok {
			src.Layers = slices.Clone(src.Layers)
			src.Layers[i] = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: src.DiffIDs[i],
				Size: plain.size}
		}
	}
}

// archived is a blob in an archive.
type archived struct{ *io.SectionReader }

func (archived) Close() error    { return nil }
func (archived) Hosts() []string { return []string{"archive"} }

// archiveFile is an archive on disk.
type archiveFile struct {
	file    *os.File
	parts   map[string]part
	blobs   map[digest.Digest]part
	digests map[part]digest.Digest // of parts that were read for it: an archive may name a layer a thousand times
	limits  *source.Limits
	size    int64  // of all parts
	memory  uint64 // of parts, and of documents that were read: each image keeps its own until the end
}

type part struct {
	offset, size int64
	link         string // the part that stands for it
}

const (
	// valueMemory is what a value of a document takes in memory once it is parsed.
	valueMemory = 100
	// maxNames is how many images, and names of images, an archive may have: each is recorded by itself.
	maxNames = 1000
)

// spool copies an archive to a file without a name, on the disk of a directory, and notes where its parts are.
func (p *unpacker) spool(ctx context.Context, dir string, r io.Reader) (*archiveFile, error) {
	file, err := disk.Unnamed(dir)
	if err != nil {
		return nil, err
	}
	a := &archiveFile{
		file: file, parts: map[string]part{}, blobs: map[digest.Digest]part{},
		digests: map[part]digest.Digest{}, limits: p.limits,
	}
	if err := p.readArchive(ctx, a, r); err != nil {
		file.Close()
		return nil, err
	}
	return a, nil
}

// readArchive has a child read an archive. It returns once the child has ended and a read of r that was under way
// has too.
func (p *unpacker) readArchive(ctx context.Context, a *archiveFile, r io.Reader) error {
	limits := archive.Limits{Bytes: a.limits.Bytes, BytesKey: source.KeyBytes, Names: a.limits.Layer.PathMemory}
	in, err := ring.New(ring.ToPeer)
	if err != nil {
		return err
	}
	packed := in.Writer()
	defer packed.Close()
	c, err := p.children.Start(ctx, jail.Spec{
		Role: archive.Role, Task: limits, Memory: compression.Memory + limits.Memory(), FileSize: limits.Bytes,
		MaxAnswer: limits.Answer(),
		In:        []*ring.Pair{in}, Files: []*os.File{a.file},
	})
	if err != nil {
		return err
	}
	stream := &fed{Reader: r}
	stream.reading.Store(true)
	watched := &stalling{child: c, what: archive.Role.Name, moved: stream.n.Load, owes: func() bool {
		return !stream.reading.Load()
	}}
	watch := newStall(p.patience, watched)
	ended := make(chan error, 1)
	go func() { ended <- feed(packed, stream) }()
	var index archive.Index
	err = watched.because(c.Wait(&index))
	watch.stop()
	packed.HangUp()
	fedErr := <-ended
	switch {
	case fedErr != nil && !errors.Is(fedErr, errChildLost):
		return fmt.Errorf("read the archive: %w", fedErr)
	case err != nil:
		return err
	}
	info, err := a.file.Stat()
	if err != nil {
		return err
	}
	if err := index.Check(limits, info.Size()); err != nil {
		return err
	}
	a.size = index.Size
	if err := a.keep(index.Memory()); err != nil {
		return err
	}
	for _, listed := range index.Parts {
		name := string(listed.Name)
		entry := part{offset: listed.Offset, size: listed.Size, link: string(listed.Link)}
		a.parts[name] = entry
		if alg, hex, ok := strings.Cut(strings.TrimPrefix(name, "blobs/"), "/"); ok && entry.link == "" &&
			strings.HasPrefix(name, "blobs/") {
			a.blobs[digest.NewDigestFromEncoded(digest.Algorithm(alg), hex)] = entry
		}
	}
	return nil
}

// keep counts what the archive takes in memory.
func (a *archiveFile) keep(n uint64) error {
	if a.memory += n; a.memory > a.limits.Layer.PathMemory {
		return source.Beyond("the names and documents in the archive take", unpack.KeyPathMemory,
			a.limits.Layer.PathMemory, "bytes of memory")
	}
	return nil
}

// bounded is a stream that ends with its context, and with an error where it is longer than it may be.
type bounded struct {
	ctx         context.Context
	r           io.Reader
	left, limit uint64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	n, err := b.r.Read(p)
	if uint64(n) > b.left {
		return 0, source.Beyond("the archive has", source.KeyBytes, b.limit, "bytes")
	}
	b.left -= uint64(n)
	return n, err
}

func (a *archiveFile) has(name string) bool {
	_, err := a.find(name)
	return err == nil
}

func (a *archiveFile) find(name string) (part, error) {
	for range 10 {
		p, ok := a.parts[path.Clean(name)]
		if !ok {
			break
		}
		if p.link == "" {
			return p, nil
		}
		name = p.link
	}
	return part{}, fmt.Errorf("%s is not in the archive: %w", name, errdefs.ErrInvalidArgument)
}

// document reads a small part whole.
func (a *archiveFile) document(p part) ([]byte, error) {
	if limit := a.limits.Document; uint64(p.size) > limit {
		return nil, source.Beyond(fmt.Sprintf("a document has %d bytes,", p.size), source.KeyDocument, limit, "bytes")
	}
	if err := a.keep(uint64(p.size)); err != nil {
		return nil, err
	}
	data := make([]byte, p.size)
	if _, err := a.file.ReadAt(data, p.offset); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := a.limits.CheckDocument(data); err != nil {
		return nil, err
	}
	return data, a.keep(valueMemory * source.Values(data))
}

func (a *archiveFile) json(name string, v any) error {
	p, err := a.find(name)
	if err != nil {
		return err
	}
	data, err := a.document(p)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w: %w", name, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// blob reads a document by its digest.
func (a *archiveFile) blob(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", d.Digest, err, errdefs.ErrInvalidArgument)
	}
	p, ok := a.blobs[d.Digest]
	if !ok {
		return nil, fmt.Errorf("blob %s is not in the archive: %w", d.Digest, errdefs.ErrInvalidArgument)
	}
	data, err := a.document(p)
	if err == nil && d.Digest.Algorithm().FromBytes(data) != d.Digest {
		err = &corruptError{fmt.Sprintf("blob %s does not match its digest", d.Digest)}
	}
	return data, err
}

// add makes a part a blob, by the digest of its bytes.
func (a *archiveFile) add(ctx context.Context, name, mediaType string) (ocispec.Descriptor, error) {
	p, err := a.find(name)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d, ok := a.digests[p]
	if !ok {
		stream := &bounded{ctx: ctx, r: io.NewSectionReader(a.file, p.offset, p.size), left: uint64(p.size)}
		if d, err = digest.FromReader(stream); err != nil {
			return ocispec.Descriptor{}, err
		}
		a.digests[p], a.blobs[d] = d, p
	}
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: p.size}, nil
}

// dockerArchive reads manifest.json: a list of images, each with its names and the files that it is made of. The
// manifest that a registry would have is made from it.
func dockerArchive(ctx context.Context, now *inForce, a *archiveFile) ([]*source.Image, error) {
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := a.json("manifest.json", &list); err != nil {
		return nil, err
	}
	if err := countNames(len(list)); err != nil {
		return nil, err
	}
	var sources []*source.Image
	for _, m := range list {
		manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: images.MediaTypeDockerSchema2Manifest}
		var err error
		if manifest.Config, err = a.add(ctx, m.Config, images.MediaTypeDockerSchema2Config); err != nil {
			return nil, err
		}
		if uint64(len(m.Layers)) > now.Limits.Layers {
			return nil, source.Beyond(fmt.Sprintf("an image has %d layers,", len(m.Layers)), source.KeyLayers,
				now.Limits.Layers, "of them")
		}
		for _, name := range m.Layers {
			l, err := a.add(ctx, name, images.MediaTypeDockerSchema2Layer)
			if err != nil {
				return nil, err
			}
			manifest.Layers = append(manifest.Layers, l)
		}
		raw, err := json.Marshal(manifest)
		if err != nil {
			return nil, err
		}
		desc := ocispec.Descriptor{MediaType: manifest.MediaType, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
		read := func(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
			if d.Digest == desc.Digest {
				return raw, nil
			}
			return a.blob(ctx, d)
		}
		src := &source.Image{Target: desc.Digest}
		if err := now.describer.Describe(ctx, src, desc, read); err != nil {
			return nil, err
		}
		if sources, err = named(sources, src, m.RepoTags); err != nil {
			return nil, err
		}
	}
	return sources, nil
}

func countNames(n int) error {
	if n > maxNames {
		return fmt.Errorf("the archive has %d images or names of images, more than %d: %w", n, maxNames,
			errdefs.ErrResourceExhausted)
	}
	return nil
}

// named adds a source once for each of its names, or once without.
func named(sources []*source.Image, src *source.Image, tags []string) ([]*source.Image, error) {
	if err := countNames(len(tags)); err != nil {
		return nil, err
	}
	for _, tag := range tags {
		ref, err := reference.ParseDockerRef(tag)
		if err != nil {
			return nil, fmt.Errorf("image %q: %w: %w", tag, err, errdefs.ErrInvalidArgument)
		}
		c := *src
		if tagged, ok := ref.(reference.Tagged); ok {
			c.Tag = ref.Name() + ":" + tagged.Tag()
		} else {
			c.Name = ref.Name()
		}
		sources = append(sources, &c)
	}
	if len(tags) == 0 {
		sources = append(sources, src)
	}
	return sources, countNames(len(sources))
}

// layoutArchive reads index.json of an OCI image layout. Names are in annotations: containerd's holds the whole name,
// the one of OCI often the tag alone, which names nothing.
func layoutArchive(ctx context.Context, now *inForce, a *archiveFile) ([]*source.Image, error) {
	var index ocispec.Index
	if err := a.json("index.json", &index); err != nil {
		return nil, err
	}
	if err := countNames(len(index.Manifests)); err != nil {
		return nil, err
	}
	var sources []*source.Image
	for _, desc := range index.Manifests {
		src := &source.Image{Target: desc.Digest}
		if err := now.describer.Describe(ctx, src, desc, a.blob); err != nil {
			if errdefs.IsNotFound(err) && len(index.Manifests) > 1 {
				continue // for another platform
			}
			return nil, err
		}
		var tags []string
		if name := desc.Annotations[images.AnnotationImageName]; name != "" {
			tags = []string{name}
		} else if name := desc.Annotations[ocispec.AnnotationRefName]; strings.ContainsAny(name, ":/@") {
			tags = []string{name}
		}
		var err error
		if sources, err = named(sources, src, tags); err != nil {
			return nil, err
		}
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("no image in it is for %s: %w", now.describer.Platform, errdefs.ErrNotFound)
	}
	return sources, nil
}
