package image

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/image/unpack"
	"berth/internal/jail/wire"
)

// maxXattr is the most bytes of an extended attribute, and of the list of a file's (linux/limits.h).
const maxXattr = 64 << 10

// attributeCalls does for a child what it takes the host's administrator for: extended attributes of the kinds
// trusted and security. The file must be one of the file system that the child has been given a directory of.
// Its mount is the child's: where the child may not write, this does not either.
func attributeCalls(given *os.File) (func(*wire.Call, *os.File) ([]byte, error), error) {
	var root unix.Stat_t
	if err := unix.Fstat(int(given.Fd()), &root); err != nil {
		return nil, err
	}
	return func(call *wire.Call, file *os.File) ([]byte, error) {
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err != nil {
			return nil, fmt.Errorf("look at its file: %v", err)
		}
		if st.Dev != root.Dev {
			return nil, errors.New("a call about a file that it was not given")
		}
		// By the name, since the file may be open as a place only.
		path := "/proc/self/fd/" + strconv.Itoa(int(file.Fd()))
		switch call.Op {
		case wire.SetXattr:
			// Overlayfs' own attributes lead from one directory to another.
			opaque := call.Key == unpack.OpaqueXattr && string(call.Value) == "y" && st.Mode&unix.S_IFMT == unix.S_IFDIR
			if strings.HasPrefix(call.Key, "trusted.overlay.") && !opaque || call.Key == unpack.LabelXattr {
				return nil, unix.EPERM
			}
			return nil, unix.Setxattr(path, call.Key, call.Value, 0)
		case wire.GetXattr:
			return read(func(buf []byte) (int, error) { return unix.Getxattr(path, call.Key, buf) })
		case wire.ListXattr:
			return read(func(buf []byte) (int, error) { return unix.Listxattr(path, buf) })
		}
		return nil, errors.New("a call that nobody has written")
	}, nil
}

func read(get func([]byte) (int, error)) ([]byte, error) {
	n, err := get(nil)
	if err != nil || n == 0 {
		return nil, err
	}
	buf := make([]byte, min(n+256, maxXattr)) // it may grow meanwhile
	if n, err = get(buf); err != nil {
		return nil, err
	}
	return buf[:n], nil
}
