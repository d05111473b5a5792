package unpack

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// Limits bound what a layer may cost. Zero is no limit.
type Limits struct {
	// Entries are the entries of the tar and the directories that they imply. Extended attributes and links
	// that are followed count too: a byte of a packed layer can ask for a thousand of them.
	Entries uint64
	// Bytes bound three numbers: the length of the tar, the lengths of all files together with their holes,
	// and what they take on disk.
	Bytes uint64
	// PathMemory is what unpacking may keep in memory of the layer's directories.
	PathMemory uint64
}

// Memory is how much a process needs that unpacks a layer within the limits: what it keeps of directories, the same
// as a Result, and as much again until the garbage of both is collected.
func (l Limits) Memory() uint64 { return 64<<20 + 3*l.PathMemory }

// Answer is the length of the longest Result as JSON. A directory takes more in memory than in Implied.
func (l Limits) Answer() int64 { return int64(64<<10 + l.PathMemory/3*4) }

// The keys of the configuration that set limits.
const (
	KeyEntries    = "max_layer_entries"
	KeyBytes      = "max_layer_bytes"
	KeyPathMemory = "max_layer_path_memory"
)

// LimitError says that something is more than the configuration allows. It is errdefs.ErrResourceExhausted.
type LimitError struct {
	What  string // the subject of the sentence, as in "the files of the layer take"
	Key   string // in [image] of the configuration
	Limit uint64
	Unit  string
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s more than %d %s, the limit that [image] %s sets", e.What, e.Limit, e.Unit, e.Key)
}

func (e *LimitError) Unwrap() error { return errdefs.ErrResourceExhausted }

// spend counts towards a limit. The counter keeps the sum.
func spend(counter *uint64, n, limit uint64, what, key, unit string) error {
	*counter += n
	if limit > 0 && (*counter > limit || *counter < n) {
		return &LimitError{What: what, Key: key, Limit: limit, Unit: unit}
	}
	return nil
}

// entries counts entries, or work that is worth so many.
func (l *layer) entries(n int) error {
	return spend(&l.work, uint64(n), l.limits.Entries, "the layer has", KeyEntries,
		"entries, implied directories, extended attributes and links to follow")
}

// size counts the length of a file, with holes, before anything is written.
func (l *layer) size(n int64) error {
	return spend(&l.length, uint64(n), l.limits.Bytes, "the files of the layer have", KeyBytes, "bytes")
}

// disk counts what is written.
func (l *layer) disk(n uint64) error {
	return spend(&l.bytes, n, l.limits.Bytes, "the layer takes", KeyBytes, "bytes on disk")
}

// dirMemory is what one directory takes in memory beside its name: the directory, and its place in the map of all.
const dirMemory = 208

func (l *layer) memory(name string) error {
	return spend(&l.paths, uint64(dirMemory+len(name)), l.limits.PathMemory, "the directories of the layer take",
		KeyPathMemory, "bytes of memory")
}
