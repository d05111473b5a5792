// Package firstbytes keeps the beginning of what somebody else writes, such as a program that may print without end.
package firstbytes

// Buffer keeps the first bytes that are written to it, and passes over the rest. The zero value keeps nothing. It has
// no method ReadFrom, which io.Copy would call in place of Write.
type Buffer struct {
	Left int  // how many bytes are kept from now on
	Over bool // whether more was written
	kept []byte
}

// Write never fails, so that the writer does not either.
func (b *Buffer) Write(p []byte) (int, error) {
	kept := p[:min(len(p), b.Left)]
	b.Left -= len(kept)
	b.Over = b.Over || len(kept) < len(p)
	b.kept = append(b.kept, kept...)
	return len(p), nil
}

// Bytes is what is kept. It is the buffer's own.
func (b *Buffer) Bytes() []byte { return b.kept }

func (b *Buffer) String() string { return string(b.kept) }
