package unpack

import (
	"encoding/binary"
	"fmt"
	"iter"
	"strings"

	"golang.org/x/sys/unix"
)

// Implied says where a layer depends on the layers below it: the directories that its tar puts something
// into without an entry for them. They are in it as a walk of the layer would find them, each with the directories
// above it, and take a few bytes each however deep they are. The zero value has none.
//
// For each: how deep it is as a varint (1: in the root), flags, the length of its name as a varint, its name.
type Implied []byte

// ImpliedDir is a directory of Implied.
type ImpliedDir struct {
	Depth int
	Name  string
	// Implied: the layer has the directory and its tar does not say how it looks. It should look as the layers below
	// have it; where they have a link, what is in it belongs where the link leads.
	Implied bool
	// Direct: what the layer has is right only if the layers below have no link there: the tar used the directory
	// before it said what it is, or went through it to the directory above.
	Direct bool
}

const (
	flagImplied = 1 << iota
	flagDirect
)

// Append adds a directory in the order of a walk.
func (i Implied) Append(d ImpliedDir) Implied {
	flags := byte(0)
	if d.Implied {
		flags |= flagImplied
	}
	if d.Direct {
		flags |= flagDirect
	}
	i = binary.AppendUvarint(i, uint64(d.Depth))
	i = append(i, flags)
	i = binary.AppendUvarint(i, uint64(len(d.Name)))
	return append(i, d.Name...)
}

// All are the directories. What cannot be read ends them with an error: the bytes may come from a process that a layer
// has taken over.
func (i Implied) All() iter.Seq2[ImpliedDir, error] {
	return func(yield func(ImpliedDir, error) bool) {
		depth := 0
		for rest := []byte(i); len(rest) > 0; {
			d, n, err := readImplied(rest)
			if err == nil && d.Depth > depth+1 {
				err = fmt.Errorf("%q is %d directories deeper than the one before it", d.Name, d.Depth-depth)
			}
			if err != nil {
				yield(ImpliedDir{}, fmt.Errorf("list of implied directories: %w", err))
				return
			}
			if !yield(d, nil) {
				return
			}
			depth, rest = d.Depth, rest[n:]
		}
	}
}

func readImplied(b []byte) (d ImpliedDir, size int, err error) {
	depth, n := binary.Uvarint(b)
	if n <= 0 || depth == 0 || depth > maxName || n == len(b) {
		return d, 0, fmt.Errorf("a depth of %d", depth)
	}
	flags := b[n]
	length, m := binary.Uvarint(b[n+1:])
	at := n + 1 + m
	if m <= 0 || length > unix.NAME_MAX || uint64(len(b)-at) < length {
		return d, 0, fmt.Errorf("a name of %d bytes", length)
	}
	name := string(b[at : at+int(length)])
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return d, 0, fmt.Errorf("the name %q", name)
	}
	return ImpliedDir{Depth: int(depth), Name: name, Implied: flags&flagImplied != 0,
		Direct: flags&flagDirect != 0}, at + int(length), nil
}
