package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protowire"
)

// CRIU's image of a UTS namespace is two magic numbers, the length of a message, and the message: utsns_entry, whose field 1 is
// the host's name.
const (
	utsHeader   = 8
	utsNodename = 1
)

// SetHostname changes the name of the host in an unpacked checkpoint. CRIU gives the name that it finds there to the UTS
// namespace that it joins, which is another pod's.
func SetHostname(dir, name string) error {
	files, err := filepath.Glob(filepath.Join(dir, ImagesDir, "utsns-*.img"))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := readFile(file, utsSize)
		var changed []byte
		if err == nil {
			changed, err = withHostname(b, name)
		}
		if err != nil {
			return fmt.Errorf("checkpoint: %s: %w: %w", filepath.Base(file), err, errdefs.ErrInvalidArgument)
		}
		// A new file: the old one may be an image's, under a second name.
		if err := errors.Join(os.Remove(file), os.WriteFile(file, changed, 0o600)); err != nil {
			return err
		}
	}
	return nil
}

func withHostname(image []byte, name string) ([]byte, error) {
	if len(image) < utsHeader+4 {
		return nil, errors.New("it is too short")
	}
	size := binary.LittleEndian.Uint32(image[utsHeader:])
	entry := image[utsHeader+4:]
	if uint64(size) != uint64(len(entry)) {
		return nil, fmt.Errorf("its message has %d bytes and not %d", len(entry), size)
	}
	out := protowire.AppendString(protowire.AppendTag(nil, utsNodename, protowire.BytesType), name)
	for len(entry) > 0 {
		field, kind, n := protowire.ConsumeTag(entry)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		m := protowire.ConsumeFieldValue(field, kind, entry[n:])
		if m < 0 {
			return nil, protowire.ParseError(m)
		}
		if field != utsNodename {
			out = append(out, entry[:n+m]...)
		}
		entry = entry[n+m:]
	}
	whole := binary.LittleEndian.AppendUint32(append([]byte(nil), image[:utsHeader]...), uint32(len(out)))
	return append(whole, out...), nil
}

// Link gives the files of a checkpoint second names in another directory of the same file system, as Unpack would unpack it.
func Link(from, to string) error {
	if err := os.MkdirAll(filepath.Join(to, ImagesDir), 0o700); err != nil {
		return err
	}
	for _, sub := range []string{"", ImagesDir} {
		entries, err := os.ReadDir(filepath.Join(from, sub))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.Type().IsRegular() {
				continue
			}
			name := filepath.Join(sub, e.Name())
			if err := os.Link(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
				return err
			}
		}
	}
	return nil
}
