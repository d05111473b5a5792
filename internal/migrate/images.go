package migrate

import (
	"archive/tar"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"

	"berth/internal/image/source"
)

// Namespace is the one that containerd's CRI plugin keeps its images in.
const Namespace = "k8s.io"

const (
	// annotationName is containerd's annotation of a manifest in an image layout: the image's whole name.
	annotationName = "io.containerd.image.name"
	// labelPinned marks an image that the CRI does not remove.
	labelPinned = "io.cri-containerd.pinned"
	lockWait    = 2 * time.Second
)

// ErrRunning is the error of a store whose database containerd holds.
var ErrRunning = errors.New("containerd is running, and holds its database")

// Name is a name in containerd's image store.
type Name struct {
	Name   string
	Target ocispec.Descriptor
	Labels map[string]string
}

// Image is an image of containerd's, with all of its names.
type Image struct {
	Target ocispec.Descriptor `json:"-"`
	Digest digest.Digest      `json:"digest"`
	Names  []string           `json:"names"` // but for the IDs, which containerd keeps as names too
	Pinned bool               `json:"pinned,omitempty"`
	// Missing is why the image cannot be imported: it was pulled without some of its blobs, or they are gone. Empty: it
	// can be.
	Missing string `json:"missing,omitempty"`
	Bytes   int64  `json:"bytes"`

	blobs []ocispec.Descriptor // each before the ones it names
}

// Store is containerd's image store on disk.
type Store struct {
	Root     string // of containerd
	Platform string // empty: this machine's
	Sandbox  string // the image of sandboxes, whose pin means nothing in Berth
}

// Names reads the names of a store from containerd's database, which must not be running, and in how many namespaces
// that are not the CRI's there are images too.
func (s *Store) Names() (names []Name, others map[string]int, err error) {
	path := filepath.Join(s.Root, "io.containerd.metadata.v1.bolt", "meta.db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil // no containerd has run here
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
	if errors.Is(err, bberrors.ErrTimeout) {
		return nil, nil, fmt.Errorf("%s: %w", path, ErrRunning)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	defer db.Close()
	others = map[string]int{}
	err = db.View(func(tx *bbolt.Tx) error {
		v1 := tx.Bucket([]byte("v1"))
		if v1 == nil {
			return nil
		}
		return v1.ForEachBucket(func(namespace []byte) error {
			images := v1.Bucket(namespace).Bucket([]byte("images"))
			if images == nil {
				return nil
			}
			return images.ForEachBucket(func(name []byte) error {
				if string(namespace) != Namespace {
					others[string(namespace)]++
					return nil
				}
				names = append(names, readName(string(name), images.Bucket(name)))
				return nil
			})
		})
	})
	return names, others, err
}

func readName(name string, b *bbolt.Bucket) Name {
	n := Name{Name: name, Labels: map[string]string{}}
	if target := b.Bucket([]byte("target")); target != nil {
		n.Target.Digest = digest.Digest(target.Get([]byte("digest")))
		n.Target.MediaType = string(target.Get([]byte("mediatype")))
		n.Target.Size, _ = binary.Varint(target.Get([]byte("size")))
	}
	if labels := b.Bucket([]byte("labels")); labels != nil {
		_ = labels.ForEach(func(k, v []byte) error {
			n.Labels[string(k)] = string(v)
			return nil
		})
	}
	return n
}

// Images puts the names of each image together, and looks which images are whole.
func (s *Store) Images(ctx context.Context, names []Name) ([]*Image, error) {
	limits := source.Limits{}.WithDefaults()
	describer, err := source.NewDescriber(s.Platform, &limits)
	if err != nil {
		return nil, err
	}
	byTarget := map[digest.Digest]*Image{}
	var out []*Image
	for _, n := range names {
		img := byTarget[n.Target.Digest]
		if img == nil {
			img = &Image{Target: n.Target, Digest: n.Target.Digest}
			byTarget[n.Target.Digest] = img
			out = append(out, img)
		}
		if !strings.HasPrefix(n.Name, "sha256:") {
			img.Names = append(img.Names, n.Name)
		}
		img.Pinned = img.Pinned || n.Labels[labelPinned] == "pinned"
	}
	for _, img := range out {
		slices.Sort(img.Names)
		if s.Sandbox != "" && slices.Contains(img.Names, s.Sandbox) {
			img.Pinned = false
		}
		if err := s.describe(ctx, describer, img); err != nil {
			img.Missing = err.Error()
		}
	}
	slices.SortFunc(out, func(a, b *Image) int { return strings.Compare(a.title(), b.title()) })
	return out, nil
}

func (i *Image) title() string {
	if len(i.Names) > 0 {
		return i.Names[0]
	}
	return i.Digest.String()
}

// String is the image's first name, or its digest.
func (i *Image) String() string { return i.title() }

// describe finds the blobs that an image is made of.
func (s *Store) describe(ctx context.Context, describer *source.Describer, img *Image) error {
	seen := map[digest.Digest]bool{}
	add := func(d ocispec.Descriptor) {
		if !seen[d.Digest] {
			seen[d.Digest] = true
			img.blobs = append(img.blobs, d)
			img.Bytes += d.Size
		}
	}
	var src source.Image
	err := describer.Describe(ctx, &src, img.Target, func(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
		info, err := s.stat(d)
		if err != nil {
			return nil, err
		}
		if uint64(info.Size()) > describer.Limits.Document {
			return nil, fmt.Errorf("blob %s has %d bytes, which no manifest has", d.Digest, info.Size())
		}
		add(ocispec.Descriptor{Digest: d.Digest, Size: info.Size()})
		return os.ReadFile(s.path(d.Digest))
	})
	if err != nil {
		return err
	}
	gone := 0
	for _, layer := range src.Blobs() {
		info, err := s.stat(layer)
		if errors.Is(err, fs.ErrNotExist) {
			gone++
			continue
		} else if err != nil {
			return err
		}
		add(ocispec.Descriptor{Digest: layer.Digest, Size: info.Size()})
	}
	if gone > 0 {
		return fmt.Errorf("%d of its %d layers are not in containerd's content store: containerd keeps none after it has "+
			"unpacked them where discard_unpacked_layers is set", gone, len(src.Blobs()))
	}
	return nil
}

func (s *Store) path(d digest.Digest) string {
	return filepath.Join(s.Root, "io.containerd.content.v1.content", "blobs", d.Algorithm().String(), d.Encoded())
}

// stat finds a blob, which has to be as long as its descriptor says, if that says.
func (s *Store) stat(d ocispec.Descriptor) (fs.FileInfo, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	info, err := os.Stat(s.path(d.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s is not in containerd's content store: %w", d.Digest, fs.ErrNotExist)
	}
	if err == nil && d.Size > 0 && info.Size() != d.Size {
		err = fmt.Errorf("blob %s has %d bytes, not %d", d.Digest, info.Size(), d.Size)
	}
	return info, err
}

// WriteArchive writes an image as an OCI image layout in a tar, which Berth imports.
func (s *Store) WriteArchive(ctx context.Context, w io.Writer, img *Image) error {
	target := func(string) ocispec.Descriptor { return img.Target }
	return writeLayout(w, img.Names, target, func(out *tar.Writer) error {
		for _, d := range img.blobs {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := putBlob(out, d.Digest, d.Size, func(w io.Writer) error { return s.copy(w, d) }); err != nil {
				return fmt.Errorf("blob %s: %w", d.Digest, err)
			}
		}
		return nil
	})
}

func (s *Store) copy(w io.Writer, d ocispec.Descriptor) error {
	file, err := os.Open(s.path(d.Digest))
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}

// writeLayout writes the parts of a layout that name its images, and has blobs write the others.
func writeLayout(w io.Writer, names []string, target func(name string) ocispec.Descriptor,
	blobs func(*tar.Writer) error) error {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		d := target(name)
		if name != "" {
			d.Annotations = map[string]string{annotationName: name}
		}
		index.Manifests = append(index.Manifests, d)
	}
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	for _, f := range []struct{ name, text string }{
		{ocispec.ImageLayoutFile, `{"imageLayoutVersion":"1.0.0"}`}, {"index.json", string(data)},
	} {
		if err := putFile(out, f.name, int64(len(f.text)), func(w io.Writer) error {
			_, err := io.WriteString(w, f.text)
			return err
		}); err != nil {
			return err
		}
	}
	if err := blobs(out); err != nil {
		return err
	}
	return out.Close()
}

func putBlob(out *tar.Writer, d digest.Digest, size int64, write func(io.Writer) error) error {
	return putFile(out, "blobs/"+d.Algorithm().String()+"/"+d.Encoded(), size, write)
}

func putFile(out *tar.Writer, name string, size int64, write func(io.Writer) error) error {
	if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	if err := write(out); err != nil {
		return err
	}
	return out.Flush() // an error where it is shorter than it was to be
}
