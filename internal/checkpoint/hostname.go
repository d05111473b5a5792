package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// CRIU's image of a UTS namespace is two magic numbers, the length of a message, and the message: utsns_entry, whose
// field 1 is the host's name.
const (
	utsHeader   = 8
	utsNodename = 1
	utsSize     = 64 << 10 // the most bytes of one
)

// SetHostname changes the name of the host in an unpacked checkpoint. CRIU gives the name that it finds
// there to the UTS namespace that it joins, which is another pod's.
func SetHostname(dir, name string) error {
	d, err := openDirectory(dir)
	if err != nil {
		return err
	}
	defer d.close()
	var files []string
	err = d.each(ImagesDir, func(_ int, file string, _ uint32) error {
		if ok, _ := path.Match("utsns-*.img", file); ok {
			files = append(files, file)
		}
		return nil
	})
	if err != nil {
		return err
	}
	at, err := d.tree.FD(d.sub(ImagesDir))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := d.read(path.Join(ImagesDir, file), utsSize)
		var changed []byte
		if err == nil {
			changed, err = withHostname(b, name)
		}
		if err != nil {
			return fmt.Errorf("checkpoint: %s: %w: %w", file, err, errdefs.ErrInvalidArgument)
		}
		// A new file: the old one may be an image's, under a second name.
		if err := replace(at, file, changed); err != nil {
			return fmt.Errorf("checkpoint: %s: %w", file, err)
		}
	}
	return nil
}

// replace puts a new file in the place of another one in an open directory.
func replace(dir int, name string, data []byte) error {
	if err := unix.Unlinkat(dir, name, 0); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
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
