package fileattr

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Attributes are what a container sees of a file beside its content and its times. Links are not followed.
type Attributes struct {
	Mode, UID, GID uint32 // Mode with the type of the file
	Xattrs         map[string][]byte
}

// Of reads the attributes of a file. The host's SELinux gives labels of its own, and overlayfs' attributes are not the image's:
// neither is among them.
func Of(path string) (*Attributes, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	a := &Attributes{Mode: st.Mode, UID: st.Uid, GID: st.Gid}
	keys, err := read(func(buf []byte) (int, error) { return unix.Llistxattr(path, buf) })
	if errors.Is(err, unix.ENOTSUP) {
		return a, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list extended attributes of %s: %w", path, err)
	}
	for key := range strings.SplitSeq(strings.TrimSuffix(string(keys), "\x00"), "\x00") {
		if key == "" || key == "security.selinux" || strings.HasPrefix(key, "trusted.overlay.") {
			continue
		}
		value, err := read(func(buf []byte) (int, error) { return unix.Lgetxattr(path, key, buf) })
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", key, path, err)
		}
		if a.Xattrs == nil {
			a.Xattrs = map[string][]byte{}
		}
		a.Xattrs[key] = value
	}
	return a, nil
}

// read asks for a size first: most files have nothing to read.
func read(get func([]byte) (int, error)) ([]byte, error) {
	for {
		n, err := get(nil)
		if err != nil || n == 0 {
			return nil, err
		}
		buf := make([]byte, n)
		n, err = get(buf)
		if errors.Is(err, unix.ERANGE) { // it has grown since
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}

// Equal tells whether two files look alike.
func (a *Attributes) Equal(b *Attributes) bool {
	if a.Mode != b.Mode || a.UID != b.UID || a.GID != b.GID || len(a.Xattrs) != len(b.Xattrs) {
		return false
	}
	for key, v := range a.Xattrs {
		if w, ok := b.Xattrs[key]; !ok || !bytes.Equal(v, w) {
			return false
		}
	}
	return true
}

// Apply gives a file the attributes: the owner first, since a change of owner clears setuid bits and file capabilities.
func (a *Attributes) Apply(path string) error {
	if err := os.Lchown(path, int(a.UID), int(a.GID)); err != nil {
		return err
	}
	if a.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(path, a.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: path, Err: err}
		}
	}
	for key, v := range a.Xattrs {
		if err := unix.Lsetxattr(path, key, v, 0); err != nil {
			return fmt.Errorf("set %s of %s: %w", key, path, err)
		}
	}
	return nil
}

// Copy gives one file the attributes of another.
func Copy(from, to string) error {
	a, err := Of(from)
	if err != nil {
		return err
	}
	return a.Apply(to)
}
