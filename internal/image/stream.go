package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"berth/internal/image/registry"
	"berth/internal/image/unpack"
)

// unpack runs a packed layer through verification and decompression into the directory fs. One goroutine downloads,
// verifies and decompresses; this one checks the diff ID and writes files.
func (s *Store) unpack(ctx context.Context, src blob, j *job, fs string) (*layerFile, error) {
	root, err := os.Open(fs)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	packed := &verified{r: src, hash: j.desc.Digest.Algorithm().Hash(), count: j.loaded.Add}
	plain := &verified{hash: j.diffID.Algorithm().Hash()}
	ahead := startReadAhead(packed)
	plain.r = ahead
	limits := s.cfg.Limits.Layer
	bounded := unpack.Bound(ctx, plain, limits)
	result, err := unpack.Layer(ctx, root, bounded, limits)
	if err == nil {
		// The padding behind the end of the archive counts for the digest.
		_, err = io.Copy(io.Discard, bounded)
	}
	ahead.Close()

	var failed *sourceError
	switch {
	case errors.As(err, &failed):
		return nil, failed.err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil && errors.Is(err, errdefs.ErrResourceExhausted), err != nil && isErrno(err):
		return nil, err
	}
	// What cannot be unpacked may be corrupt or badly made: the digest tells.
	if _, e := io.Copy(io.Discard, packed); e != nil {
		if errors.As(e, &failed) {
			e = failed.err
		}
		return nil, e
	}
	if got := packed.sum(); got != j.desc.Digest.Encoded() || packed.n != j.desc.Size {
		return nil, &corruptError{fmt.Sprintf("blob of %d bytes has digest %s:%s", packed.n, j.desc.Digest.Algorithm(), got)}
	}
	if err != nil {
		return nil, err
	}
	if got := plain.sum(); got != j.diffID.Encoded() {
		return nil, fmt.Errorf("unpacked it has digest %s, the image's configuration says %s: %w", got, j.diffID, errdefs.ErrInvalidArgument)
	}
	if len(result.Unsupported) > 0 {
		s.log.Warn("file system does not take extended attributes of a layer", "layer", j.desc.Digest, "attributes", result.Unsupported)
	}
	return &layerFile{Implied: result.Implied, layerRecord: layerRecord{
		Bytes: result.Bytes, Inodes: result.Inodes, Entries: result.Entries, Length: result.Length,
		OpaqueRoot: result.OpaqueRoot, Depends: len(result.Implied) > 0,
	}}, nil
}

func isErrno(err error) bool {
	var errno unix.Errno
	return errors.As(err, &errno) && !errdefs.IsInvalidArgument(err)
}

// corruptError is content that is not what its digest says.
type corruptError struct{ text string }

func (e *corruptError) Error() string { return e.text }
func (e *corruptError) Unwrap() []error {
	return []error{registry.ErrCorrupt, errdefs.ErrFailedPrecondition}
}

// sourceError is an error of the download, which the layers above it must not take for one of the format.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// verified is a reader that hashes what passes.
type verified struct {
	r     io.Reader
	hash  hash.Hash
	n     int64
	count func(int64) int64
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	if n > 0 {
		_, _ = v.hash.Write(p[:n])
		v.n += int64(n)
		if v.count != nil {
			v.count(int64(n))
		}
	}
	return n, err
}

func (v *verified) sum() string { return fmt.Sprintf("%x", v.hash.Sum(nil)) }

const (
	chunkSize = 256 << 10
	chunks    = 4 // of decompressed bytes on their way, per layer
)

var chunkPool = sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }}

// readAhead decompresses in a goroutine of its own, a few chunks ahead of its reader.
type readAhead struct {
	full  chan *[]byte
	stop  chan struct{}
	ended chan struct{}
	err   error // of the goroutine, once full is closed
	cur   []byte
	buf   *[]byte
}

func startReadAhead(packed io.Reader) *readAhead {
	a := &readAhead{full: make(chan *[]byte, chunks), stop: make(chan struct{}), ended: make(chan struct{})}
	go a.run(packed)
	return a
}

func (a *readAhead) run(packed io.Reader) {
	defer close(a.ended)
	defer close(a.full)
	in := bufio.NewReaderSize(fromSource{packed}, 128<<10)
	plain, end, err := decompressor(in)
	if err != nil {
		a.err = err
		return
	}
	defer end()
	for {
		buf := chunkPool.Get().(*[]byte)
		n, err := io.ReadFull(plain, (*buf)[:chunkSize])
		*buf = (*buf)[:n]
		if n > 0 {
			select {
			case a.full <- buf:
			case <-a.stop:
				return
			}
		}
		if err != nil {
			// ReadFull alone says ErrUnexpectedEOF: a decompressor's own is wrapped.
			if err != io.EOF && err != io.ErrUnexpectedEOF {
				a.err = err
			} else {
				// What stands behind the packed stream belongs to the blob.
				_, a.err = io.Copy(io.Discard, in)
			}
			return
		}
	}
}

func (a *readAhead) Read(p []byte) (int, error) {
	for len(a.cur) == 0 {
		a.free()
		buf, ok := <-a.full
		if !ok {
			if a.err != nil {
				return 0, a.err
			}
			return 0, io.EOF
		}
		a.buf, a.cur = buf, *buf
	}
	n := copy(p, a.cur)
	a.cur = a.cur[n:]
	return n, nil
}

func (a *readAhead) free() {
	if a.buf != nil {
		*a.buf = (*a.buf)[:chunkSize]
		chunkPool.Put(a.buf)
		a.buf = nil
	}
}

// Close ends the goroutine and waits for it.
func (a *readAhead) Close() {
	close(a.stop)
	<-a.ended
	a.free()
}

// fromSource marks errors of the download.
type fromSource struct{ r io.Reader }

func (f fromSource) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && err != io.EOF {
		err = &sourceError{err}
	}
	return n, err
}

// decompressor looks at the first bytes: media types are not always right.
func decompressor(in *bufio.Reader) (io.Reader, func(), error) {
	magic, err := in.Peek(4)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		r, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, packedError(err)
		}
		return decoding{r}, func() { r.Close() }, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), // a frame
		len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18}): // a skippable one
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, packedError(err)
		}
		return decoding{r}, r.Close, nil
	}
	return in, func() {}, nil
}

// decoding makes what a decompressor finds wrong the image's fault.
type decoding struct{ r io.Reader }

func (d decoding) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	if err != nil && err != io.EOF {
		err = packedError(err)
	}
	return n, err
}

func packedError(err error) error {
	var failed *sourceError
	if errors.As(err, &failed) {
		return failed
	}
	return fmt.Errorf("decompress: %w: %w", err, errdefs.ErrInvalidArgument)
}
