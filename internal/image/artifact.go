package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/disk"
	"berth/internal/image/source"
)

// An artifact is kept as the layers of an image are. Each of its blobs, the configuration too, has the directory of a
// layer with one file in it, as it is in the registry: nothing is parsed. One more directory has the tree of its files,
// which are further names (hard links) of these. So blobs are shared by all artifacts that have them, whatever the
// names of their files, and a container mounts one directory, however many files there are.

const (
	// blobKey starts the key of a layer that is a blob; its digest follows.
	blobKey = "blob:"
	// filesKey starts the key of a layer that is the tree of an artifact's files; the digest of the manifest follows.
	filesKey = "files:"
	// blobFile is the file in the directory of a blob.
	blobFile = "blob"
	// artifactFile is the mode of all files: a registry says nothing of owners and modes. Nothing of it is executed.
	artifactFile = 0o644
)

// copyBuffer is how much of a blob is copied at a time.
const copyBuffer = 256 << 10

// keepBlob loads a blob of an artifact once, as unpacker.attempt loads a layer.
func keepBlob(ctx context.Context, j *job, fs string, bad map[string]bool) (*layerFile, []string, error) {
	want := j.from.desc
	// The type of a blob may be any text, and would be in the request.
	src, err := j.from.fetch(ctx, ocispec.Descriptor{MediaType: "application/octet-stream", Digest: want.Digest,
		Size: want.Size}, bad)
	if err != nil {
		return nil, nil, err
	}
	defer src.Close()
	j.loaded.Store(0)
	packed := &verified{r: io.LimitReader(src, want.Size+1), hash: want.Digest.Algorithm().Hash(), count: j.loaded.Add}
	err = writeBlob(filepath.Join(fs, blobFile), packed)
	switch {
	case ctx.Err() != nil:
		return nil, src.Hosts(), context.Cause(ctx)
	case packed.err != nil:
		return nil, src.Hosts(), packed.err
	case err != nil:
		return nil, src.Hosts(), err
	}
	if got := packed.sum(); got != want.Digest.Encoded() || packed.n != want.Size {
		return nil, src.Hosts(), &corruptError{fmt.Sprintf("blob of %d bytes has digest %s:%s", packed.n,
			want.Digest.Algorithm(), got)}
	}
	const block = 4096
	return &layerFile{layerRecord: layerRecord{
		Bytes: (uint64(want.Size) + block - 1) / block * block, Inodes: 1, Entries: 1, Length: uint64(want.Size),
	}}, src.Hosts(), nil
}

func writeBlob(at string, from io.Reader) error {
	file, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, artifactFile)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{file}, from, make([]byte, copyBuffer))
	return errors.Join(err, file.Chmod(artifactFile), file.Close()) // whatever the umask
}

// fileTree returns the directory with the files of an artifact, made if it is not there, with a reference for the
// caller. The blobs are those of the configuration and the layers, of which the caller has references.
func (s *Store) fileTree(ctx context.Context, src *source.Image, blobs []*layer) (*layer, error) {
	key := filesKey + src.Manifest.Digest.String()
	if l := s.index.take(key); l != nil {
		return l, nil
	}
	n, err := s.newHome(s.dirs.make)
	if err != nil {
		return nil, fmt.Errorf("files of the artifact: %w", disk.Exhausted(err))
	}
	rec := layerRecord{
		N: n, Key: key, DiffID: src.Manifest.Digest.String(), Boot: s.boot,
		Inodes: uint64(src.Artifact.Dirs) + 1, Bytes: uint64(src.Artifact.Dirs+1) * 4096,
	}
	copied, err := s.makeFileTree(ctx, n, src.Artifact, blobs)
	rec.Bytes += copied
	if err == nil {
		err = s.dirs.writeRecord(n, &layerFile{layerRecord: rec})
	}
	if err != nil {
		err = fmt.Errorf("files of the artifact: %w", disk.Exhausted(err))
		return nil, errors.Join(err, s.removeDir(context.Background(), n))
	}
	s.index.mu.Lock()
	l := s.index.layers[key]
	if l != nil { // of another pull, which was faster
		l.refs++
		s.index.mu.Unlock()
		return l, s.removeDir(context.Background(), n)
	}
	defer s.index.mu.Unlock()
	delete(s.index.busy, n)
	l = &layer{layerRecord: rec, refs: 1}
	s.index.layers[key] = l
	return l, nil
}

// makeFileTree makes the files of an artifact in the directory of a layer. Their names come from a registry. The new
// directory is empty at first, and what is made in it is reached by descriptors, so none leads elsewhere. copied are
// the bytes of files that could not be names of blobs.
func (s *Store) makeFileTree(ctx context.Context, n string, a *source.Artifact, blobs []*layer,
) (copied uint64, err error) {
	fs := s.dirs.fs(n)
	if err := makeLayerRoot(fs); err != nil {
		return 0, err
	}
	top, err := os.Open(fs)
	if err != nil {
		return 0, err
	}
	defer top.Close()
	copies := map[*layer]*os.File{} // of blobs; further names are theirs
	defer func() {
		for _, f := range copies {
			f.Close()
		}
	}()
	for _, f := range a.Files {
		if ctx.Err() != nil {
			return copied, context.Cause(ctx)
		}
		blob := blobs[f.Layer+1]
		isCopied, err := s.makeFile(ctx, top, f.Path, blob, copies)
		if isCopied {
			copied += blob.Bytes
		}
		if err != nil {
			return copied, fmt.Errorf("%.300q: %w", f.Path, err)
		}
	}
	return copied, nil
}

// makeFile makes one file of a tree.
func (s *Store) makeFile(ctx context.Context, top *os.File, at string, blob *layer, copies map[*layer]*os.File,
) (copied bool, err error) {
	dir, err := makeDirs(int(top.Fd()), path.Dir(at))
	if err != nil {
		return false, err
	}
	defer unix.Close(dir)
	name, from, flags := path.Base(at), filepath.Join(s.dirs.fs(blob.N), blobFile), 0
	if c := copies[blob]; c != nil {
		from, flags = fmt.Sprintf("/proc/self/fd/%d", c.Fd()), unix.AT_SYMLINK_FOLLOW
	}
	// Anybody may push artifacts with so many names of a blob as a file can have (65,000 on ext4).
	if err = unix.Linkat(unix.AT_FDCWD, from, dir, name, flags); !errors.Is(err, unix.EMLINK) {
		return false, err
	}
	c, err := copyBlob(ctx, from, dir, name)
	if err != nil {
		return true, err
	}
	if old := copies[blob]; old != nil {
		old.Close()
	}
	copies[blob] = c
	return true, nil
}

// makeDirs makes those of some directories that are not there, one in the other, and opens the last.
func makeDirs(top int, p string) (fd int, err error) {
	at, err := unix.Openat(top, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil || p == "." {
		return at, err
	}
	for name := range strings.SplitSeq(p, "/") {
		made := unix.Mkdirat(at, name, 0o755)
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		if at = next; made == nil {
			made = unix.Fchmod(at, 0o755) // whatever the umask
		}
		if made != nil && !errors.Is(made, unix.EEXIST) {
			unix.Close(at)
			return -1, made
		}
	}
	return at, nil
}

// copyBlob makes another file with the bytes of one, and opens it.
func copyBlob(ctx context.Context, from string, dir int, name string) (*os.File, error) {
	in, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, artifactFile)
	if err != nil {
		return nil, err
	}
	out := os.NewFile(uintptr(fd), name)
	_, err = io.Copy(out, &bounded{ctx: ctx, r: in, left: math.MaxInt64})
	if err = errors.Join(err, out.Chmod(artifactFile)); err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

// newArtifactRecord is the record of an artifact that is new, without its names. The layers are the tree of its files,
// its configuration, and what its manifest calls layers.
func newArtifactRecord(src *source.Image, layers []*layer) *imageRecord {
	r := &imageRecord{
		ID: src.ID.String(), Manifest: src.Manifest.Digest, Artifact: strings.Clone(src.Artifact.Type),
		Size: uint64(len(src.RawManifest)),
	}
	for _, l := range layers {
		r.Layers = append(r.Layers, l.Key)
	}
	for _, d := range src.Blobs() {
		r.Blobs = append(r.Blobs, ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size})
		r.Size += uint64(d.Size)
	}
	for _, d := range src.DiffIDs {
		r.DiffIDs = append(r.DiffIDs, d.String())
	}
	return r
}

// stacked are the keys of the layers that a mount stacks, base first.
func (r *imageRecord) stacked() []string {
	if r.Artifact != "" {
		return r.Layers[:1]
	}
	return r.Layers
}

// Blob is a part of an artifact.
type Blob struct {
	ocispec.Descriptor
	Path string // of the file with its bytes
}

// Blobs are the configuration and the layers of an artifact, in this order. Their files stay while the caller has a
// reference (AddReference). An image has none.
func (s *Store) Blobs(imageID string) ([]Blob, error) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	r := s.index.images[wholeID(imageID)]
	if r == nil {
		return nil, unknownImage(imageID)
	}
	if r.Artifact == "" {
		return nil, nil
	}
	var blobs []Blob
	for i, d := range r.Blobs {
		l := s.index.layers[r.Layers[i+1]]
		blobs = append(blobs, Blob{Descriptor: d, Path: filepath.Join(s.dirs.fs(l.N), blobFile)})
	}
	return blobs, nil
}

// keyOf is the key of the layer that a job makes.
func (k jobKey) keyOf() string {
	if k.raw {
		return blobKey + k.blob.String()
	}
	return k.diffID.String()
}

// partsOf are the layers that have to be obtained for an image or an artifact, as jobs know them.
func partsOf(src *source.Image) []jobKey {
	var keys []jobKey
	for i, d := range src.Blobs() {
		key := jobKey{blob: d.Digest, registry: src.Registry, raw: src.Artifact != nil}
		if key.raw {
			key.diffID = d.Digest
		} else {
			key.diffID = src.DiffIDs[i]
		}
		keys = append(keys, key)
	}
	return keys
}
