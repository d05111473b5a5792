package layertar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
)

// FileName is the name of a record, beside the directory of its layer.
const FileName = "tar-record"

// The head of a record: magic, state and length of the tar, big-endian. What follows is packed by zstd: parts, each
// with its kind, and for
//
//	partBytes  the number of bytes as a varint, and the bytes
//	partFile   the size of the file and the length of its name as varints, and its name
const (
	magic    = "berthtar"
	headSize = len(magic) + 8 + 8

	partBytes = 'b'
	partFile  = 'f'

	maxBytes = 64 << 10 // in one part
	maxName  = 8 << 10  // a path, and a name in it

	// maxRecord is the most bytes of a record on disk. Records have 1 to 2 % of their layers; one that is larger comes
	// from a tar that is mostly headers or has much behind its end.
	maxRecord = 256 << 20
)

// State says whether a tar can be made again.
type State uint64

const (
	stateUnfinished State = iota
	// Whole: it can.
	Whole
	// Replaced: the tar has a file whose content a later entry of the same tar has replaced.
	Replaced
	// TooLarge: the tar has too many bytes beside the contents of its files.
	TooLarge
)

// Head is what a record says first.
type Head struct {
	State  State
	Length int64 // of the tar
}

// ReadHead reads the head of a record. Neither number is to be believed.
func ReadHead(r io.ReaderAt) (Head, error) {
	var b [headSize]byte
	if _, err := r.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return Head{}, err
	}
	h := Head{State: State(binary.BigEndian.Uint64(b[len(magic):]))}
	h.Length = int64(binary.BigEndian.Uint64(b[len(magic)+8:]))
	if string(b[:len(magic)]) != magic || h.State == stateUnfinished || h.State > TooLarge || h.Length < 0 {
		return Head{}, fmt.Errorf("the record of the layer's tar is spoilt: %w", errdefs.ErrFailedPrecondition)
	}
	return h, nil
}

// Problem is why the tar cannot be made again, as the end of a sentence; empty: it can.
func (h Head) Problem() string {
	switch h.State {
	case Replaced:
		return "its tar has several entries for one file, of which the last one alone is kept"
	case TooLarge:
		return fmt.Sprintf("the record of its tar would have more than %d bytes", maxRecord)
	}
	return ""
}

// Recorder writes the record of a tar that is being unpacked. It belongs to one goroutine.
type Recorder struct {
	file    *os.File
	out     *bounded
	packed  *zstd.Encoder
	pending []byte // bytes that no part has yet
	part    []byte
	head    Head
	err     error
}

// NewRecorder writes a record into a file, which is empty. limit is the most bytes that a file may have; 0: any number.
func NewRecorder(file *os.File, limit uint64) (*Recorder, error) {
	r := &Recorder{file: file, out: &bounded{w: file, left: maxRecord}, head: Head{State: Whole}}
	if limit > 0 {
		r.out.left = int64(min(limit, maxRecord))
	}
	if _, err := r.out.Write(make([]byte, headSize)); err != nil {
		return nil, r.failed(err)
	}
	var err error
	// One goroutine and a small window: a layer's child has one processor, and its memory is for directories.
	r.packed, err = zstd.NewWriter(r.out, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true))
	return r, err
}

// Bytes records bytes that are not the content of a file.
func (r *Recorder) Bytes(p []byte) {
	r.head.Length += int64(len(p))
	for len(p) > 0 && r.err == nil && r.head.State != TooLarge {
		n := min(len(p), maxBytes-len(r.pending))
		r.pending = append(r.pending, p[:n]...)
		if p = p[n:]; len(r.pending) == maxBytes {
			r.flush()
		}
	}
}

// File records that the content of a file comes next in the tar. Its name is where it is in the layer's directory.
func (r *Recorder) File(name string, size int64) {
	r.head.Length += size
	if size == 0 {
		return
	}
	r.flush()
	r.part = append(r.part[:0], partFile)
	r.part = binary.AppendUvarint(r.part, uint64(size))
	r.part = binary.AppendUvarint(r.part, uint64(len(name)))
	r.part = append(r.part, name...)
	r.write(r.part)
}

// Replaced records that the content of a file is gone.
func (r *Recorder) Replaced() {
	if r.head.State == Whole {
		r.head.State = Replaced
	}
}

func (r *Recorder) flush() {
	if len(r.pending) == 0 {
		return
	}
	r.part = append(r.part[:0], partBytes)
	r.part = binary.AppendUvarint(r.part, uint64(len(r.pending)))
	r.write(r.part)
	r.write(r.pending)
	r.pending = r.pending[:0]
}

func (r *Recorder) write(p []byte) {
	if r.err != nil || r.head.State != Whole {
		return
	}
	_, err := r.packed.Write(p)
	r.note(err)
}

// note keeps an error. A record that is too large is none: the layer is as good without it.
func (r *Recorder) note(err error) {
	switch {
	case errors.Is(err, errTooLarge):
		r.head.State = TooLarge
	case r.err == nil:
		r.err = err
	}
}

// Finish ends the record, once the whole tar was read.
func (r *Recorder) Finish() error {
	r.flush()
	r.note(r.packed.Close())
	if r.err == nil && r.head.State != Whole {
		r.err = r.file.Truncate(int64(headSize))
	}
	if r.err != nil {
		return r.failed(r.err)
	}
	head := binary.BigEndian.AppendUint64([]byte(magic), uint64(r.head.State))
	head = binary.BigEndian.AppendUint64(head, uint64(r.head.Length))
	if _, err := r.file.WriteAt(head, 0); err != nil {
		return r.failed(err)
	}
	return nil
}

func (r *Recorder) failed(err error) error {
	return fmt.Errorf("write the record of the layer's tar: %w", err)
}

var errTooLarge = errors.New("the record is too large")

// bounded is a writer that takes so many bytes.
type bounded struct {
	w    io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errTooLarge
	}
	return b.w.Write(p)
}
