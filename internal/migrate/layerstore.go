package migrate

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"

	"berth/internal/image/source"
)

// LayerStore is a store of github.com/containers/storage on overlayfs, in which CRI-O keeps images. It has layers as
// directories, each with a file from which, and from the directory, the layer's uncompressed tar is made again.
type LayerStore struct {
	Roots   []string // the first is written by CRI-O; images and layers of the others are found too
	Sandbox string   // the image of sandboxes, which Berth does not need

	layers  map[string]storedLayer // by ID
	content map[*Image]*stored
}

// storedLayer is an element of layers.json.
type storedLayer struct {
	ID     string        `json:"id"`
	Parent string        `json:"parent"`
	DiffID digest.Digest `json:"diff-digest"`
	Size   int64         `json:"diff-size"`

	root string
}

// storedImage is an element of images.json.
type storedImage struct {
	ID     string        `json:"id"`
	Digest digest.Digest `json:"digest"`
	Names  []string      `json:"names"`
	Layer  string        `json:"layer"` // the uppermost
	Data   []string      `json:"big-data-names"`

	root string
}

// stored is what an archive of an image is made of.
type stored struct {
	documents map[digest.Digest]document // manifests and the configuration
	layers    []storedLayer              // base first
}

type document struct {
	mediaType string
	data      []byte
}

// Images reads the images of the store, and looks which of them are whole. A directory without a store has no images.
func (s *LayerStore) Images(ctx context.Context) ([]*Image, error) {
	s.layers, s.content = map[string]storedLayer{}, map[*Image]*stored{}
	var list []storedImage
	for _, root := range s.Roots {
		var layers []storedLayer
		if err := readList(filepath.Join(root, "overlay-layers", "layers.json"), &layers); err != nil {
			return nil, err
		}
		for _, l := range layers {
			l.root = root
			s.layers[l.ID] = l
		}
		var images []storedImage
		if err := readList(filepath.Join(root, "overlay-images", "images.json"), &images); err != nil {
			return nil, err
		}
		for _, img := range images {
			img.root = root
			list = append(list, img)
		}
	}
	limits := source.Limits{}.WithDefaults()
	describer, err := source.NewDescriber("", &limits)
	if err != nil {
		return nil, err
	}
	var out []*Image
	for _, found := range list {
		if len(found.Names) > 0 && !slices.ContainsFunc(found.Names, func(n string) bool { return n != s.Sandbox }) {
			continue
		}
		img := &Image{Names: withDigests(found.Names, found.Digest), Digest: found.Digest}
		content, err := s.describe(ctx, describer, &found, img)
		if err != nil {
			img.Missing = err.Error()
		}
		s.content[img] = content
		out = append(out, img)
	}
	slices.SortFunc(out, func(a, b *Image) int { return cmp.Compare(a.title(), b.title()) })
	return out, nil
}

// withDigests are the names of an image, sorted, with the repository of each beside the digest: CRI-O finds images by
// that, too.
func withDigests(names []string, d digest.Digest) []string {
	all := slices.Clone(names)
	for _, name := range names {
		if ref, err := reference.ParseNormalizedNamed(name); err == nil {
			all = append(all, ref.Name()+"@"+d.String())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// readList reads a file of the store, which need not be there.
func readList(path string, into any) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// describe finds the documents and the layers of an image.
func (s *LayerStore) describe(ctx context.Context, describer *source.Describer, found *storedImage,
	img *Image) (*stored, error) {
	c := &stored{documents: map[digest.Digest]document{}}
	for _, key := range found.Data {
		if !strings.HasPrefix(key, "manifest") && !strings.HasPrefix(key, "sha256:") {
			continue // a signature
		}
		data, err := found.read(key, int64(describer.Limits.Document))
		if err != nil {
			return nil, err
		}
		var header struct {
			MediaType string `json:"mediaType"`
			Manifests []any  `json:"manifests"`
		}
		if strings.HasPrefix(key, "manifest") {
			if err := json.Unmarshal(data, &header); err != nil {
				return nil, fmt.Errorf("%s of image %s: %w", key, found.ID, err)
			}
			if header.MediaType == "" {
				header.MediaType = ocispec.MediaTypeImageManifest
				if header.Manifests != nil {
					header.MediaType = ocispec.MediaTypeImageIndex
				}
			}
		}
		c.documents[digest.FromBytes(data)] = document{header.MediaType, data}
	}
	target, ok := c.documents[found.Digest]
	if !ok {
		return nil, fmt.Errorf("its manifest %s is not in CRI-O's store", found.Digest)
	}
	img.Target = ocispec.Descriptor{MediaType: target.mediaType, Digest: found.Digest, Size: int64(len(target.data))}
	var src source.Image
	err := describer.Describe(ctx, &src, img.Target, func(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
		doc, ok := c.documents[d.Digest]
		if !ok {
			return nil, fmt.Errorf("blob %s is not in CRI-O's store: %w", d.Digest, fs.ErrNotExist)
		}
		return doc.data, nil
	})
	if err != nil {
		return nil, err
	}
	if src.Artifact != nil {
		return nil, errors.New("it is an artifact, and no image")
	}
	if err := s.chain(c, found.Layer, src.DiffIDs); err != nil {
		return nil, err
	}
	for _, l := range c.layers {
		img.Bytes += l.Size
	}
	return c, nil
}

// chain finds the layers of an image, which are those of its configuration.
func (s *LayerStore) chain(c *stored, top string, diffIDs []digest.Digest) error {
	for id := top; id != ""; {
		l, ok := s.layers[id]
		if !ok {
			return fmt.Errorf("its layer %s is not in CRI-O's store", id)
		}
		if len(c.layers) == len(diffIDs) {
			return fmt.Errorf("it has more than the %d layers of its configuration in CRI-O's store", len(diffIDs))
		}
		if _, err := os.Stat(l.tarSplit()); err != nil {
			return fmt.Errorf("the tar of its layer %s cannot be made again: %w", l.ID, err)
		}
		c.layers = append(c.layers, l)
		id = l.Parent
	}
	slices.Reverse(c.layers)
	if len(c.layers) != len(diffIDs) {
		return fmt.Errorf("it has %d layers in CRI-O's store, and %d in its configuration", len(c.layers), len(diffIDs))
	}
	for i, l := range c.layers {
		if l.DiffID != diffIDs[i] {
			return fmt.Errorf("its layer %s is %s in CRI-O's store, and %s in its configuration", l.ID, l.DiffID, diffIDs[i])
		}
	}
	return nil
}

// read reads one of the documents of an image.
func (i *storedImage) read(key string, limit int64) ([]byte, error) {
	if !filepath.IsLocal(i.ID) {
		return nil, fmt.Errorf("%q is no ID of an image", i.ID)
	}
	file, err := os.Open(filepath.Join(i.root, "overlay-images", i.ID, dataName(key)))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s has more than %d bytes, which no manifest has", file.Name(), limit)
	}
	return data, err
}

// dataName is the name of a document's file: the key, or what stands for one with characters that the library does not
// take.
func dataName(key string) string {
	plain := func(r rune) bool { return r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' }
	if strings.IndexFunc(key, func(r rune) bool { return !plain(r) }) < 0 {
		return key
	}
	return "=" + base64.StdEncoding.EncodeToString([]byte(key))
}

// tarSplit is the layer's file of github.com/vbatts/tar-split: all of its tar but the content of files.
func (l *storedLayer) tarSplit() string {
	return filepath.Join(l.root, "overlay-layers", filepath.Base(l.ID)+".tar-split.gz")
}

// write writes the layer's tar.
func (l *storedLayer) write(ctx context.Context, w io.Writer) error {
	metadata, err := os.Open(l.tarSplit())
	if err != nil {
		return err
	}
	defer metadata.Close()
	plain, err := gzip.NewReader(metadata)
	if err != nil {
		return fmt.Errorf("%s: %w", metadata.Name(), err)
	}
	files := layerFiles{ctx, filepath.Join(l.root, "overlay", filepath.Base(l.ID), "diff")}
	return asm.WriteOutputTarStream(files, storage.NewJSONUnpacker(plain), w)
}

// layerFiles are the files of a layer. An image decides what links are among them, which do not lead out.
type layerFiles struct {
	ctx context.Context
	dir string
}

func (f layerFiles) Get(name string) (io.ReadCloser, error) {
	if err := f.ctx.Err(); err != nil {
		return nil, err
	}
	handle, err := pathrs.OpenInRoot(f.dir, name)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s in %s is no file", name, f.dir)
	}
	if err != nil {
		return nil, err
	}
	return pathrs.Reopen(handle, os.O_RDONLY)
}

// WriteArchive writes an image as an OCI image layout in a tar, which Berth imports. The layers are uncompressed, and
// have the names of their digests then, which are not those of the manifest.
func (s *LayerStore) WriteArchive(ctx context.Context, w io.Writer, img *Image) error {
	c := s.content[img]
	target := func(name string) ocispec.Descriptor {
		// A name with the digest of another of the image's manifests is a name of that.
		if _, hex, ok := strings.Cut(name, "@"); ok {
			if d, ok := c.documents[digest.Digest(hex)]; ok {
				return ocispec.Descriptor{MediaType: d.mediaType, Digest: digest.Digest(hex), Size: int64(len(d.data))}
			}
		}
		return img.Target
	}
	return writeLayout(w, img.Names, target, func(out *tar.Writer) error {
		for d, doc := range c.documents {
			if err := putBlob(out, d, int64(len(doc.data)), func(w io.Writer) error {
				_, err := w.Write(doc.data)
				return err
			}); err != nil {
				return err
			}
		}
		written := map[digest.Digest]bool{}
		for _, l := range c.layers {
			if written[l.DiffID] {
				continue
			}
			written[l.DiffID] = true
			if err := putBlob(out, l.DiffID, l.Size, func(w io.Writer) error { return l.write(ctx, w) }); err != nil {
				return fmt.Errorf("layer %s: %w", l.ID, err)
			}
		}
		return nil
	})
}
