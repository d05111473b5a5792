package compression

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"berth/internal/jail/wire"
)

// maxWindow is the most that a zstd stream may make its decoder remember: zstd's own limit for --long.
const maxWindow = 128 << 20

// Role is that of a child which decompresses one stream into another, and has nothing else.
var Role = &wire.Role{Name: "decompress"}

// Memory is what the role needs.
const Memory = 3 * maxWindow

// NewReader decompresses in, by gzip or zstd, or passes it on as it is. What a decompressor finds wrong is
// errdefs.ErrInvalidArgument. A zstd stream with too large a window is errdefs.ErrResourceExhausted.
func NewReader(in *bufio.Reader) (io.ReadCloser, error) {
	magic, err := in.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		r, err := gzip.NewReader(in)
		if err != nil {
			return nil, invalid(err)
		}
		return &decoding{r, r.Close}, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), // a frame
		len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18}): // a skippable one
		if err := checkWindow(in); err != nil {
			return nil, err
		}
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, invalid(err)
		}
		return &decoding{r, func() error { r.Close(); return nil }}, nil
	}
	return io.NopCloser(in), nil
}

// checkWindow looks at the first frame, since programs pack all frames of a file alike. The decoder's own error for too
// large a window is also that for damaged blocks.
func checkWindow(in *bufio.Reader) error {
	start, err := in.Peek(zstd.HeaderMaxSize)
	if err != nil && err != io.EOF {
		return err
	}
	var h zstd.Header
	if h.Decode(start) != nil || h.WindowSize <= maxWindow {
		return nil // the decoder says what is wrong
	}
	return fmt.Errorf("decompress: the zstd stream needs a window of %d MiB, and the most is %d MiB (zstd --long=27): %w",
		h.WindowSize>>20, maxWindow>>20, errdefs.ErrResourceExhausted)
}

// decoding makes what a decompressor finds wrong the fault of who packed it.
type decoding struct {
	io.Reader
	end func() error
}

func (d *decoding) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = invalid(err)
	}
	return n, err
}

func (d *decoding) Close() error { return d.end() }

func invalid(err error) error {
	return fmt.Errorf("decompress: %w: %w", err, errdefs.ErrInvalidArgument)
}

// Decompress decompresses all of packed into plain. What stands behind the packed stream belongs to it and is read too.
func Decompress(plain io.ReaderFrom, packed io.Reader) error {
	in := bufio.NewReaderSize(packed, 128<<10)
	r, err := NewReader(in)
	if err != nil {
		return err
	}
	if _, err := plain.ReadFrom(r); err != nil {
		return err
	}
	if err := r.Close(); err != nil {
		return invalid(err)
	}
	_, err = io.Copy(io.Discard, in)
	return err
}
