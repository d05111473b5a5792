// Package sparse copies files without filling their holes. A file of an image may be a terabyte long and use no block.
package sparse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// piece is how much is copied before the context is looked at.
const piece = 64 << 20

// Copy copies a file into an empty one, from the beginning, with its length. Where the source has holes the copy
// has them too, if the source's file system tells them; the bytes that were not holes are returned.
func Copy(ctx context.Context, to, from *os.File) (data int64, err error) {
	info, err := from.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	for at := int64(0); at < size; {
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // nothing but a hole is left
		}
		if err != nil {
			return data, fmt.Errorf("look for data at byte %d: %w", at, err)
		}
		end, err := unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return data, fmt.Errorf("look for a hole at byte %d: %w", begin, err)
		}
		n, err := run(ctx, to, from, begin, min(end, size))
		if data += n; err != nil {
			return data, err
		}
		at = end
	}
	return data, to.Truncate(size)
}

// run copies what stands between two places without a hole.
func run(ctx context.Context, to, from *os.File, begin, end int64) (n int64, err error) {
	for _, f := range []*os.File{to, from} {
		if _, err := f.Seek(begin, io.SeekStart); err != nil {
			return 0, err
		}
	}
	n, err = CopyN(ctx, to, from, end-begin) // the kernel copies, where it can
	if errors.Is(err, io.EOF) {
		err = nil // it became shorter
	}
	return n, err
}

// CopyN copies n bytes, as io.CopyN does, and holes as zeros. The end of the context ends it.
func CopyN(ctx context.Context, to io.Writer, from io.Reader, n int64) (done int64, err error) {
	for done < n {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		some, err := io.CopyN(to, from, min(piece, n-done))
		if done += some; err != nil {
			return done, err
		}
	}
	return done, nil
}
