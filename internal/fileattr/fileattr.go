package fileattr

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Attributes are what a container sees of a file beside its content and its times.
type Attributes struct {
	Mode, UID, GID uint32 // Mode with the type of the file
	Xattrs         map[string][]byte
}

// Xattrs are the system calls on extended attributes of an open file. A process that is not the host's administrator
// sees and sets only some of them by itself, and has somebody else make the calls.
type Xattrs struct {
	List func(fd int, buf []byte) (int, error)
	Get  func(fd int, key string, buf []byte) (int, error)
	Set  func(fd int, key string, value []byte) error
}

// System makes the calls in this process.
var System = Xattrs{
	List: unix.Flistxattr, Get: unix.Fgetxattr,
	Set: func(fd int, key string, value []byte) error { return unix.Fsetxattr(fd, key, value, 0) },
}

// Of reads the attributes of an open file or directory, as the function Of does.
func (x Xattrs) Of(fd int) (*Attributes, error) { return file{fd: fd, by: &x}.attributes() }

// Apply gives an open file or directory attributes.
func (x Xattrs) Apply(a *Attributes, fd int) error { return a.apply(file{fd: fd, by: &x}) }

// file is how one open file is reached. A descriptor that was opened with O_PATH, as of links and devices,
// takes few calls; the others go by its name in /proc, which leads to the file itself, even if that is a link.
type file struct {
	fd   int
	proc string  // empty: the descriptor takes all calls
	by   *Xattrs // where the descriptor takes all calls
}

func (f file) list(buf []byte) (int, error) {
	if f.proc != "" {
		return unix.Listxattr(f.proc, buf)
	}
	return f.by.List(f.fd, buf)
}

func (f file) get(key string, buf []byte) (int, error) {
	if f.proc != "" {
		return unix.Getxattr(f.proc, key, buf)
	}
	return f.by.Get(f.fd, key, buf)
}

func (f file) set(key string, value []byte) error {
	if f.proc != "" {
		return unix.Setxattr(f.proc, key, value, 0)
	}
	return f.by.Set(f.fd, key, value)
}

func (f file) chmod(mode uint32) error {
	if f.proc != "" {
		return unix.Chmod(f.proc, mode)
	}
	return unix.Fchmod(f.fd, mode)
}

// Of reads the attributes of an open file or directory. The host's SELinux gives labels of its own, and overlayfs'
// attributes are not the image's: neither is among them.
func Of(fd int) (*Attributes, error) { return System.Of(fd) }

// OfAt reads the attributes of what has a name in an open directory, whatever it is; a link is not followed.
func OfAt(dir int, name string) (*Attributes, error) {
	f, err := at(dir, name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(f.fd)
	return f.attributes()
}

// at opens any kind of file without any effect on it.
func at(dir int, name string) (file, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return file{}, fmt.Errorf("open %s: %w", name, err)
	}
	return file{fd: fd, proc: "/proc/self/fd/" + strconv.Itoa(fd)}, nil
}

func (f file) attributes() (*Attributes, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return nil, fmt.Errorf("stat: %w", err)
	}
	a := &Attributes{Mode: st.Mode, UID: st.Uid, GID: st.Gid}
	keys, err := read(f.list)
	if errors.Is(err, unix.ENOTSUP) {
		return a, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list extended attributes: %w", err)
	}
	for key := range strings.SplitSeq(strings.TrimSuffix(string(keys), "\x00"), "\x00") {
		if key == "" || key == "security.selinux" || strings.HasPrefix(key, "trusted.overlay.") {
			continue
		}
		value, err := read(func(buf []byte) (int, error) { return f.get(key, buf) })
		if errors.Is(err, unix.ENODATA) {
			continue // it was removed since
		}
		if err != nil {
			return nil, fmt.Errorf("read extended attribute %s: %w", key, err)
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

// Apply gives an open file or directory the attributes.
func (a *Attributes) Apply(fd int) error { return System.Apply(a, fd) }

// ApplyAt gives them to what has a name in an open directory, whatever it is; a link is not followed.
func (a *Attributes) ApplyAt(dir int, name string) error {
	f, err := at(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(f.fd)
	return a.apply(f)
}

// apply begins with the owner, since a change of owner clears setuid bits and file capabilities.
func (a *Attributes) apply(f file) error {
	if err := unix.Fchownat(f.fd, "", int(a.UID), int(a.GID), unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("chown to %d:%d: %w", a.UID, a.GID, err)
	}
	if a.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := f.chmod(a.Mode & 0o7777); err != nil {
			return fmt.Errorf("chmod to %o: %w", a.Mode&0o7777, err)
		}
	}
	for key, v := range a.Xattrs {
		if err := f.set(key, v); err != nil {
			return fmt.Errorf("set extended attribute %s: %w", key, err)
		}
	}
	return nil
}
