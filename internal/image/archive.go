package image

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/model"
)

// ImportArchive loads the images of an archive as `docker save` writes it, or of an OCI image layout in a tar, packed by
// gzip or zstd or not at all. Images get the names that the archive gives them. The archive is kept beside the store
// while it is loaded, since its parts come in any order.
func (s *Store) ImportArchive(ctx context.Context, r io.Reader) ([]*model.Image, error) {
	list, err := s.importArchive(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("import archive: %w", diskError(err))
	}
	return list, nil
}

func (s *Store) importArchive(ctx context.Context, r io.Reader) ([]*model.Image, error) {
	a, err := s.spool(ctx, r)
	if err != nil {
		return nil, err
	}
	defer a.file.Close()
	var sources []*source
	switch {
	case a.has("manifest.json"):
		sources, err = s.dockerArchive(ctx, a)
	case a.has("index.json"):
		sources, err = s.layoutArchive(ctx, a)
	default:
		err = fmt.Errorf("there is neither manifest.json nor index.json in it: %w", errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, err
	}
	var list []*model.Image
	for _, src := range sources {
		fetch := func(_ context.Context, d ocispec.Descriptor, not map[string]bool) (blob, error) {
			part, ok := a.blobs[d.Digest]
			if !ok || len(not) > 0 {
				return nil, fmt.Errorf("blob %s is not in the archive: %w", d.Digest, errdefs.ErrNotFound)
			}
			return archived{io.NewSectionReader(a.file, part.offset, part.size)}, nil
		}
		img, err := s.obtain(ctx, src, fetch, nil)
		if err != nil {
			return nil, err
		}
		list = append(list, img)
	}
	return list, nil
}

// archived is a blob in an archive.
type archived struct{ *io.SectionReader }

func (archived) Close() error    { return nil }
func (archived) Hosts() []string { return []string{"archive"} }

// archive is an archive on disk.
type archive struct {
	file  *os.File
	parts map[string]part
	blobs map[digest.Digest]part
	limit int64
}

type part struct {
	offset, size int64
	link         string // the part that stands for it
}

// spool copies an archive to a file without a name, and notes where its parts are.
func (s *Store) spool(ctx context.Context, r io.Reader) (*archive, error) {
	file, err := os.CreateTemp(s.root, "import-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	limit := s.cfg.MaxDocument
	if limit <= 0 {
		limit = 4 << 20
	}
	a := &archive{file: file, parts: map[string]part{}, blobs: map[digest.Digest]part{}, limit: limit}
	if err := a.read(ctx, r); err != nil {
		file.Close()
		return nil, err
	}
	return a, nil
}

func (a *archive) read(ctx context.Context, r io.Reader) error {
	plain, end, err := decompressor(bufio.NewReaderSize(r, 128<<10))
	if err != nil {
		return err
	}
	defer end()
	var offset int64
	tr := tar.NewReader(plain)
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the archive is not a sound tar: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			n, err := io.Copy(a.file, tr)
			if err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			p := part{offset: offset, size: n}
			a.parts[name] = p
			offset += n
			if alg, hex, ok := strings.Cut(strings.TrimPrefix(name, "blobs/"), "/"); ok && strings.HasPrefix(name, "blobs/") {
				a.blobs[digest.NewDigestFromEncoded(digest.Algorithm(alg), hex)] = p
			}
		case tar.TypeSymlink:
			a.parts[name] = part{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			a.parts[name] = part{link: path.Clean(h.Linkname)}
		}
	}
}

func (a *archive) has(name string) bool {
	_, err := a.find(name)
	return err == nil
}

func (a *archive) find(name string) (part, error) {
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
func (a *archive) document(p part) ([]byte, error) {
	if p.size > a.limit {
		return nil, fmt.Errorf("a document of %d bytes, more than the %d that are read: %w", p.size, a.limit, errdefs.ErrInvalidArgument)
	}
	data := make([]byte, p.size)
	_, err := a.file.ReadAt(data, p.offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data, err
}

func (a *archive) json(name string, v any) error {
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
func (a *archive) blob(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
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
func (a *archive) add(name, mediaType string) (ocispec.Descriptor, error) {
	p, err := a.find(name)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d, err := digest.FromReader(io.NewSectionReader(a.file, p.offset, p.size))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	a.blobs[d] = p
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: p.size}, nil
}

// dockerArchive reads manifest.json: a list of images, each with its names and the files that it is made of. The
// manifest that a registry would have is made from it.
func (s *Store) dockerArchive(ctx context.Context, a *archive) ([]*source, error) {
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := a.json("manifest.json", &list); err != nil {
		return nil, err
	}
	var sources []*source
	for _, m := range list {
		manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: images.MediaTypeDockerSchema2Manifest}
		var err error
		if manifest.Config, err = a.add(m.Config, images.MediaTypeDockerSchema2Config); err != nil {
			return nil, err
		}
		for _, name := range m.Layers {
			l, err := a.add(name, images.MediaTypeDockerSchema2Layer)
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
		src := &source{target: desc.Digest}
		if err := s.describe(ctx, src, desc, read); err != nil {
			return nil, err
		}
		if sources, err = named(sources, src, m.RepoTags); err != nil {
			return nil, err
		}
	}
	return sources, nil
}

// named adds a source once for each of its names, or once without.
func named(sources []*source, src *source, tags []string) ([]*source, error) {
	for _, tag := range tags {
		ref, err := reference.ParseDockerRef(tag)
		if err != nil {
			return nil, fmt.Errorf("image %q: %w: %w", tag, err, errdefs.ErrInvalidArgument)
		}
		c := *src
		if tagged, ok := ref.(reference.Tagged); ok {
			c.tag = ref.Name() + ":" + tagged.Tag()
		} else {
			c.name = ref.Name()
		}
		sources = append(sources, &c)
	}
	if len(tags) == 0 {
		sources = append(sources, src)
	}
	return sources, nil
}

// layoutArchive reads index.json of an OCI image layout. Names are in annotations: containerd's holds the whole name, the
// one of OCI often the tag alone, which names nothing.
func (s *Store) layoutArchive(ctx context.Context, a *archive) ([]*source, error) {
	var index ocispec.Index
	if err := a.json("index.json", &index); err != nil {
		return nil, err
	}
	var sources []*source
	for _, desc := range index.Manifests {
		src := &source{target: desc.Digest}
		if err := s.describe(ctx, src, desc, a.blob); err != nil {
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
		return nil, fmt.Errorf("no image in it is for %s: %w", s.platformName(), errdefs.ErrNotFound)
	}
	return sources, nil
}
