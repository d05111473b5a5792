package streaming

import (
	"context"
	"io"
	"sync"
)

// Input is a file whose reads can be given up: what arrives after that is for the next reader. The end of a read of a
// terminal cannot be brought about otherwise, and the read would take what is typed next.
type Input struct {
	file io.Reader

	mu      sync.Mutex       // of one reader at a time; guards the rest
	pending chan arrivedData // of a read that goes on; nil: none does
	rest    []byte           // has arrived and nobody has got it
	buffer  []byte
}

// arrivedData is the result of a read.
type arrivedData struct {
	data []byte
	err  error
}

// NewInput is the input that a file is.
func NewInput(file io.Reader) *Input { return &Input{file: file} }

// Reader reads the input until ctx ends; the error is the context's then.
func (in *Input) Reader(ctx context.Context) io.Reader { return &inputReader{in, ctx} }

type inputReader struct {
	in  *Input
	ctx context.Context //nolint:containedctx // io.Reader has none
}

func (r *inputReader) Read(p []byte) (int, error) { return r.in.read(r.ctx, p) }

func (in *Input) read(ctx context.Context, p []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := ctx.Err(); err != nil || len(p) == 0 {
		return 0, err
	}
	if len(in.rest) == 0 {
		if in.pending == nil {
			if in.buffer == nil {
				in.buffer = make([]byte, 64<<10)
			}
			pending := make(chan arrivedData, 1)
			in.pending = pending
			go func() { // ends with the read, or with this command
				n, err := in.file.Read(in.buffer)
				pending <- arrivedData{in.buffer[:n], err}
			}()
		}
		select {
		case got := <-in.pending:
			in.pending, in.rest = nil, got.data
			if len(got.data) == 0 {
				return 0, got.err // with data, the next read gives it again
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}
