// Package archive reads archives of images, which may be hostile. It lists the files in the tar, and copies their
// contents into one file. It runs in a confined child (package jail) that has this file and nothing else.
package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/containerd/errdefs"

	"berth/internal/image/unpack"
	"berth/internal/jail/wire"
)

// Role is that of a child which reads a packed archive. Its task is Limits, its answer an Index.
var Role = &wire.Role{Name: "read the archive", Filesystem: true}

// Limits bound what an archive may cost.
type Limits struct {
	Bytes    uint64 // of the tar, and of all files in it
	BytesKey string // in the configuration
	Names    uint64 // bytes of memory that names take
}

// Memory is how much a process needs beside what it decompresses with.
func (l Limits) Memory() uint64 { return 64<<20 + 4*l.Names }

// Answer is the length of the longest Index as JSON. A file takes more in memory than in it.
func (l Limits) Answer() int64 { return int64(64<<10 + l.Names/3*4) }

// Index says where the files of an archive are.
type Index struct {
	Size  int64 // of all together
	Parts []Part
}

// Part is a file of the archive, or a link of it to another one. Names are clean, and can have any bytes.
type Part struct {
	Name         []byte
	Offset, Size int64
	Link         []byte `json:",omitempty"`
}

const (
	copyBytes = 256 << 10
	// partMemory is what a part takes in memory beside its names.
	partMemory = 256
)

// Memory is what the parts take in memory.
func (i *Index) Memory() (n uint64) {
	for _, p := range i.Parts {
		n += uint64(partMemory + len(p.Name) + len(p.Link))
	}
	return n
}

// Check makes sure of what a child says: the file has so many bytes.
func (i *Index) Check(l Limits, bytes int64) error {
	for _, p := range i.Parts {
		if p.Offset < 0 || p.Size < 0 || p.Size > bytes || p.Offset > bytes-p.Size {
			return fmt.Errorf("%.100q is not where its child says: %w", p.Name, errdefs.ErrInternal)
		}
	}
	if i.Memory() > l.Names || i.Size != bytes || uint64(bytes) > l.Bytes {
		return fmt.Errorf("the archive is not what its child says: %w", errdefs.ErrInternal)
	}
	return nil
}

// Read reads a tar, whose files it writes into an empty file. Zeros become holes: a few bytes may be unpacked
// to any number of them.
func Read(file *os.File, plain io.Reader, limits Limits) (*Index, error) {
	stream := &bounded{r: plain, left: limits.Bytes, limits: limits}
	out := &writer{file: file, buf: make([]byte, copyBytes)}
	index := &Index{}
	memory := uint64(0)
	tr := tar.NewReader(stream)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			index.Size = out.size
			return index, file.Truncate(out.size) // whatever holes are at the end
		}
		if err != nil {
			if errdefs.IsResourceExhausted(err) {
				return nil, err
			}
			return nil, fmt.Errorf("the archive is not a sound tar: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		name := path.Clean(h.Name)
		if memory += uint64(partMemory + len(name) + len(h.Linkname)); memory > limits.Names {
			return nil, &unpack.LimitError{What: "the names and documents in the archive take", Key: unpack.KeyPathMemory,
				Limit: limits.Names, Unit: "bytes of memory"}
		}
		p := Part{Name: []byte(name)}
		switch h.Typeflag {
		case tar.TypeReg:
			if uint64(out.size)+uint64(h.Size) > limits.Bytes {
				return nil, limits.beyond("the files of the archive have")
			}
			p.Offset, p.Size = out.size, h.Size
			if err := out.copy(tr, h.Size); err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
		case tar.TypeSymlink:
			p.Link = []byte(path.Join(path.Dir(name), h.Linkname))
		case tar.TypeLink:
			p.Link = []byte(path.Clean(h.Linkname))
		default:
			continue
		}
		index.Parts = append(index.Parts, p)
	}
}

func (l Limits) beyond(what string) error {
	return &unpack.LimitError{What: what, Key: l.BytesKey, Limit: l.Bytes, Unit: "bytes"}
}

type writer struct {
	file *os.File
	size int64
	buf  []byte
}

func (w *writer) copy(r io.Reader, size int64) error {
	for end := w.size + size; w.size < end; {
		n, err := io.ReadFull(r, w.buf[:min(int64(len(w.buf)), end-w.size)])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("the archive is cut off: %w", errdefs.ErrInvalidArgument)
		}
		if err != nil {
			return err
		}
		if !isZero(w.buf[:n]) {
			if _, err := w.file.WriteAt(w.buf[:n], w.size); err != nil {
				return err
			}
		}
		w.size += int64(n)
	}
	return nil
}

func isZero(b []byte) bool { return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

// bounded is a stream that ends with an error where it is longer than it may be.
type bounded struct {
	r      io.Reader
	left   uint64
	limits Limits
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if uint64(n) > b.left {
		return 0, b.limits.beyond("the archive has")
	}
	b.left -= uint64(n)
	return n, err
}
