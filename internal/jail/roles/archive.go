package roles

import (
	"bufio"
	"io"

	"berth/internal/compression"
	"berth/internal/image/archive"
	"berth/internal/jail/child"
)

// readArchive reads a packed archive of images into a file.
func readArchive(t *child.Task) (any, error) {
	var limits archive.Limits
	if err := t.Decode(&limits); err != nil {
		return nil, err
	}
	packed := bufio.NewReaderSize(t.In[0], 128<<10)
	plain, err := compression.NewReader(packed)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	index, err := archive.Read(t.Files[0], plain, limits)
	if err != nil {
		return nil, err
	}
	// The rest is read as well: the sender would otherwise fail with a broken pipe.
	_, err = io.Copy(io.Discard, packed)
	return index, err
}
