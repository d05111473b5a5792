package layertar

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Rebuild writes the tar that a record is of. The contents of its files are read below root, and no link is followed.
func Rebuild(root, record *os.File, out io.Writer) error {
	if _, err := record.Seek(int64(headSize), io.SeekStart); err != nil {
		return err
	}
	packed, err := zstd.NewReader(bufio.NewReaderSize(onlyReader{record}, maxBytes), zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(1<<20), zstd.WithDecoderMaxWindow(1<<20))
	if err != nil {
		return err
	}
	defer packed.Close()
	b := &rebuilding{in: bufio.NewReaderSize(packed, maxBytes), out: out, root: int(root.Fd()), dir: -1,
		buf: make([]byte, 256<<10)}
	defer b.closeDir()
	for {
		kind, err := b.in.ReadByte()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = b.part(kind)
		}
		if err != nil {
			return err
		}
	}
}

// onlyReader hides what else a file can do, for which a child has no system calls.
type onlyReader struct{ io.Reader }

// rebuilding is a tar that is being made.
type rebuilding struct {
	in      *bufio.Reader
	out     io.Writer
	root    int
	dir     int    // the directory of the last file; -1: none
	dirPath string // its path
	buf     []byte
}

func spoilt(format string, args ...any) error {
	return fmt.Errorf("the record of the layer's tar: "+format+": %w", append(args, errdefs.ErrFailedPrecondition)...)
}

func (b *rebuilding) part(kind byte) error {
	n, err := binary.ReadUvarint(b.in)
	if err != nil {
		return spoilt("%v", err)
	}
	switch {
	case kind == partBytes && n <= maxBytes:
		return b.copy(b.in, int64(n))
	case kind == partFile && int64(n) > 0:
		length, err := binary.ReadUvarint(b.in)
		if err != nil || length > maxName {
			return spoilt("a name of %d bytes", length)
		}
		name := make([]byte, length)
		if _, err := io.ReadFull(b.in, name); err != nil {
			return spoilt("%v", err)
		}
		if err := b.file(string(name), int64(n)); err != nil {
			return fmt.Errorf("%.256q: %w", name, err)
		}
		return nil
	}
	return spoilt("a part of kind %q and %d bytes", kind, n)
}

// copy copies n bytes. It does not use io.Copy, which would make system calls that a child may not.
func (b *rebuilding) copy(from io.Reader, n int64) error {
	for n > 0 {
		got, err := io.ReadFull(from, b.buf[:min(n, int64(len(b.buf)))])
		if err != nil {
			return spoilt("%d bytes are missing: %v", n-int64(got), err)
		}
		if _, err := b.out.Write(b.buf[:got]); err != nil {
			return err
		}
		n -= int64(got)
	}
	return nil
}

func (b *rebuilding) file(name string, size int64) error {
	dir, base := path.Split(name)
	at, err := b.open(strings.TrimSuffix(dir, "/"))
	if err != nil {
		return err
	}
	// A device must not be opened: the record may name one.
	var st unix.Stat_t
	if err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return missing(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != size {
		return spoilt("the layer has no file of %d bytes there", size)
	}
	fd, err := unix.Openat(at, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return missing(err)
	}
	defer unix.Close(fd)
	return b.copy(reading(fd), size)
}

func missing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return spoilt("the layer does not have it")
	}
	return err
}

// reading reads a descriptor by system calls alone.
type reading int

func (r reading) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(r), p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// open opens a directory of the layer, name by name: a path may be longer than the kernel takes. The last one stays
// open for the next file.
func (b *rebuilding) open(dir string) (int, error) {
	if dir == "" {
		return b.root, nil
	}
	if b.dir >= 0 && dir == b.dirPath {
		return b.dir, nil
	}
	b.closeDir()
	at := b.root
	for name := range strings.SplitSeq(dir, "/") {
		if name == "" || name == "." || name == ".." {
			return -1, spoilt("the directory %.256q", dir)
		}
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if at != b.root {
			unix.Close(at)
		}
		if err != nil {
			return -1, missing(err)
		}
		at = next
	}
	b.dir, b.dirPath = at, dir
	return at, nil
}

func (b *rebuilding) closeDir() {
	if b.dir >= 0 {
		unix.Close(b.dir)
		b.dir = -1
	}
}
