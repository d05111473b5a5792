package export

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image"
	"berth/internal/image/registry"
	"berth/internal/image/source"
	"berth/internal/liblog"
	"berth/internal/model"
)

// Store is the image store as an export uses it.
type Store interface {
	Get(ctx context.Context, refOrID string) (*model.Image, error)
	Manifest(imageID string) ([]byte, error)
	ConfigJSON(imageID string) ([]byte, error)
	Layers(imageID string) ([]image.LayerInfo, error)
	// Blobs are the configuration and the layers of an artifact; none: an image.
	Blobs(imageID string) ([]image.Blob, error)
	// Repository is where an image is pushed to, with the node's configuration of registries.
	Repository(ctx context.Context, ref reference.Named, auth *model.Auth) (*registry.Repository, error)
	// Spool is a new file without a name on the store's disk.
	Spool() (*os.File, error)
	// AddReference keeps the layers of an image until Release.
	AddReference(imageID, holder string) (*image.Layers, error)
	Release(holder string)
}

// Exporter writes archives of images. Its methods are safe for concurrent use.
type Exporter struct {
	store    Store
	children image.Children
	log      *slog.Logger
	exports  atomic.Uint64
}

// New makes an Exporter. The children make the tars of layers again.
func New(store Store, children image.Children, log *slog.Logger) *Exporter {
	return &Exporter{store: store, children: children, log: log}
}

// maxImages is how many images an archive may have, as an import takes no more.
const maxImages = 1000

// exported is an image or an artifact that is being written. An artifact is written as it was pulled: it has blobs, and
// no config, infos and layers.
type exported struct {
	id       string
	blobs    []image.Blob // of an artifact
	names    []string     // tags in full
	config   []byte
	pulled   []byte // the manifest as it was pulled
	manifest []byte
	desc     ocispec.Descriptor // of the manifest
	infos    []image.LayerInfo  // base first
	layers   []*layer           // of the infos; nil before locate
}

// Save writes images to w as an OCI image layout in a tar, with the manifest.json that docker load wants, which has no
// artifacts. An image that
// is asked for by its name has this name there; one that is asked for by its ID has all its tags. Nothing is written if
// an image cannot be saved as a whole; the layers of all images stay until Save returns.
func (e *Exporter) Save(ctx context.Context, refs []string, w io.Writer) error {
	begin := time.Now()
	if len(refs) == 0 {
		return fmt.Errorf("save: no image is named: %w", errdefs.ErrInvalidArgument)
	}
	if len(refs) > maxImages {
		return fmt.Errorf("save: %d images are more than %d: %w", len(refs), maxImages, errdefs.ErrInvalidArgument)
	}
	holder := fmt.Sprintf("save:%d", e.exports.Add(1))
	defer e.store.Release(holder)
	var list []*exported
	for _, ref := range refs {
		x, err := e.find(ctx, ref, holder)
		if err == nil {
			err = x.plain()
		}
		if err == nil {
			err = errors.Join(x.locate(), x.describe())
		}
		if err != nil {
			return fmt.Errorf("save image %s: %w", ref, err)
		}
		i := slices.IndexFunc(list, func(other *exported) bool { return other.id == x.id })
		if i < 0 {
			list = append(list, x)
			continue
		}
		for _, name := range x.names {
			if !slices.Contains(list[i].names, name) {
				list[i].names = append(list[i].names, name)
			}
		}
	}
	n := &counted{w: w}
	if err := e.write(ctx, list, n); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	e.log.Info("images saved", "images", len(list), "bytes", n.n, "took_ms", liblog.Milliseconds(time.Since(begin)))
	return nil
}

type counted struct {
	w io.Writer
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// find finds an image, and keeps its layers.
func (e *Exporter) find(ctx context.Context, ref, holder string) (*exported, error) {
	img, err := e.store.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if _, err := e.store.AddReference(img.ID, holder); err != nil {
		return nil, err
	}
	x := &exported{id: img.ID, names: names(ref, img)}
	if x.pulled, err = e.store.Manifest(img.ID); err != nil {
		return nil, err
	}
	if img.Artifact != "" {
		x.blobs, err = e.store.Blobs(img.ID)
		return x, err
	}
	if x.config, err = e.store.ConfigJSON(img.ID); err != nil {
		return nil, err
	}
	x.infos, err = e.store.Layers(img.ID)
	return x, err
}

// plain refuses an image with encrypted layers: its layers here are decrypted, and would leave the node so. The error
// is errdefs.ErrFailedPrecondition.
func (x *exported) plain() error {
	var was ocispec.Manifest
	if err := json.Unmarshal(x.pulled, &was); err != nil {
		return fmt.Errorf("manifest of the image: %w", err)
	}
	if i := slices.IndexFunc(was.Layers, source.Encrypted); i >= 0 {
		return fmt.Errorf("layer %s is encrypted where the image comes from, and the node has it only decrypted: copy the "+
			"image from there: %w", was.Layers[i].Digest, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// locate finds the layers whose tars can be made again, which must be all.
func (x *exported) locate() error {
	for _, info := range x.infos {
		l, err := find(info)
		if err != nil {
			return err
		}
		x.layers = append(x.layers, l)
	}
	return nil
}

// names are those that an image has in the archive.
func names(ref string, img *model.Image) []string {
	named, err := reference.ParseDockerRef(ref)
	if err == nil && slices.Contains(img.RepoTags, named.String()) {
		return []string{named.String()}
	}
	if _, digested := named.(reference.Digested); err == nil && digested {
		return nil // the manifest in the archive has another digest
	}
	return slices.Clone(img.RepoTags)
}

// describe makes the manifest. What the pulled one says beside its layers stays; that of an artifact stays as it is.
func (x *exported) describe() error {
	if x.blobs != nil {
		return x.keepManifest()
	}
	layers := []ocispec.Descriptor{}
	for _, l := range x.layers {
		layers = append(layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: l.digest, Size: l.size})
	}
	return x.setManifest(layers)
}

// keepManifest takes the manifest as it was pulled.
func (x *exported) keepManifest() error {
	var was ocispec.Manifest
	if err := json.Unmarshal(x.pulled, &was); err != nil {
		return fmt.Errorf("manifest of the image: %w", err)
	}
	x.manifest, x.desc = x.pulled, ocispec.Descriptor{
		MediaType: cmp.Or(was.MediaType, ocispec.MediaTypeImageManifest), Digest: digest.Digest(x.id),
		Size: int64(len(x.pulled)),
	}
	return nil
}

// setManifest makes a manifest with other layers than the one that was pulled.
func (x *exported) setManifest(layers []ocispec.Descriptor) error {
	var was ocispec.Manifest
	if err := json.Unmarshal(x.pulled, &was); err != nil {
		return fmt.Errorf("manifest of the image: %w", err)
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: was.ArtifactType, Annotations: was.Annotations,
		Config: ocispec.Descriptor{
			MediaType: was.Config.MediaType, Digest: digest.Digest(x.id), Size: int64(len(x.config)),
		},
		Layers: layers,
	}
	if m.Config.MediaType == images.MediaTypeDockerSchema2Config || m.Config.MediaType == "" {
		m.Config.MediaType = ocispec.MediaTypeImageConfig
	}
	var err error
	if x.manifest, err = json.Marshal(m); err != nil {
		return err
	}
	x.desc = ocispec.Descriptor{
		MediaType: m.MediaType, Digest: digest.FromBytes(x.manifest), Size: int64(len(x.manifest)),
	}
	return nil
}

// writing is an archive that is being written.
type writing struct {
	tar  *tar.Writer
	have map[digest.Digest]bool
}

func (e *Exporter) write(ctx context.Context, list []*exported, to io.Writer) error {
	buffered := bufio.NewWriterSize(to, 1<<20)
	w := &writing{tar: tar.NewWriter(buffered), have: map[digest.Digest]bool{}}
	if err := w.documents(list); err != nil {
		return err
	}
	for _, x := range list {
		for _, b := range x.blobs {
			if err := w.copy(ctx, b); err != nil {
				return fmt.Errorf("artifact %s: %w", x.id, err)
			}
		}
		for _, l := range x.layers {
			if w.have[l.digest] {
				continue
			}
			w.have[l.digest] = true
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if err := w.header(blobName(l.digest), l.size); err != nil {
				return err
			}
			if err := l.write(ctx, e.children, w.tar); err != nil {
				return fmt.Errorf("image %s: %w", x.id, err)
			}
		}
	}
	return errors.Join(w.tar.Close(), buffered.Flush())
}

func blobName(d digest.Digest) string { return "blobs/" + d.Algorithm().String() + "/" + d.Encoded() }

// The files of an archive have no owner and no time: the same images make the same archive.
func (w *writing) header(name string, size int64) error {
	return w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644,
		ModTime: time.Unix(0, 0), Format: tar.FormatUnknown})
}

func (w *writing) file(name string, data []byte) error {
	if err := w.header(name, int64(len(data))); err != nil {
		return err
	}
	_, err := w.tar.Write(data)
	return err
}

func (w *writing) blob(d digest.Digest, data []byte) error {
	if w.have[d] {
		return nil
	}
	w.have[d] = true
	return w.file(blobName(d), data)
}

// copy writes a blob of an artifact, unless it is there. The archive says whose bytes they are, so they are checked.
func (w *writing) copy(ctx context.Context, b image.Blob) error {
	if w.have[b.Digest] {
		return nil
	}
	w.have[b.Digest] = true
	file, err := os.Open(b.Path)
	if err != nil {
		return fmt.Errorf("blob %s: %w", b.Digest, err)
	}
	defer file.Close()
	if err := w.header(blobName(b.Digest), b.Size); err != nil {
		return err
	}
	hash := b.Digest.Algorithm().Hash()
	n, err := io.Copy(io.MultiWriter(w.tar, hash), io.LimitReader(ending{ctx, file}, b.Size))
	if err != nil {
		return fmt.Errorf("blob %s: %w", b.Digest, err)
	}
	if got := digest.NewDigest(b.Digest.Algorithm(), hash); n != b.Size || got != b.Digest {
		return fmt.Errorf("blob %s: its file has digest %s: remove the artifact and pull it again: %w", b.Digest, got,
			errdefs.ErrFailedPrecondition)
	}
	return nil
}

// ending is a stream that ends with its context.
type ending struct {
	ctx context.Context
	io.Reader
}

func (e ending) Read(p []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.Reader.Read(p)
}

func (w *writing) json(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.file(name, data)
}

// dockerImage is an image in manifest.json.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// documents writes all but the layers.
func (w *writing) documents(list []*exported) error {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	docker := []dockerImage{}
	for _, x := range list {
		index.Manifests = append(index.Manifests, x.entries()...)
		if x.blobs != nil {
			continue
		}
		d := dockerImage{Config: blobName(digest.Digest(x.id)), RepoTags: x.names, Layers: []string{}}
		for _, l := range x.layers {
			d.Layers = append(d.Layers, blobName(l.digest))
		}
		docker = append(docker, d)
	}
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		err := w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: time.Unix(0, 0)})
		if err != nil {
			return err
		}
	}
	layout := ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion}
	err := errors.Join(w.json(ocispec.ImageLayoutFile, layout), w.json(ocispec.ImageIndexFile, index),
		w.json("manifest.json", docker))
	for _, x := range list {
		err = errors.Join(err, w.blob(x.desc.Digest, x.manifest))
		if x.blobs == nil {
			err = errors.Join(err, w.blob(digest.Digest(x.id), x.config))
		}
	}
	return err
}

// entries are those of an image in index.json: one for each name.
func (x *exported) entries() []ocispec.Descriptor {
	if len(x.names) == 0 {
		return []ocispec.Descriptor{x.desc}
	}
	var list []ocispec.Descriptor
	for _, name := range x.names {
		desc := x.desc
		desc.Annotations = map[string]string{
			images.AnnotationImageName: name, ocispec.AnnotationRefName: name[strings.LastIndexByte(name, ':')+1:],
		}
		list = append(list, desc)
	}
	return list
}
