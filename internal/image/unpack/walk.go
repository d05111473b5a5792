package unpack

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many symbolic links a path may have, as in the kernel.
const maxLinks = 40

func openDir(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func isWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// dir opens a directory of the layer by a path relative to the root, with links in it expanded inside the root. With
// create, what is missing is made, as a directory that the tar implies. The descriptor stays the layer's.
func (l *layer) dir(name string, create bool) (*dir, error) {
	if name == "" {
		return l.root, nil
	}
	if d := l.dirs[name]; d != nil {
		return d, nil
	}
	// The usual case: the parent is open.
	cur, rest := l.root, strings.Split(name, "/")
	if up, base := path.Split(name); up != "" {
		if d := l.dirs[strings.TrimSuffix(up, "/")]; d != nil {
			cur, rest = d, []string{base}
		}
	}
	owned := false // cur is ours to close
	release := func() {
		if owned {
			unix.Close(cur.fd)
		}
	}
	links := 0
	for len(rest) > 0 {
		c := rest[0]
		rest = rest[1:]
		switch c {
		case "", ".":
			continue
		case "..":
			up, err := l.reopen(path.Dir(cur.path))
			release()
			if err != nil {
				return nil, err
			}
			cur, owned = up, up != l.root
			continue
		}
		full := path.Join(cur.path, c)
		if len(full) > maxName {
			release()
			return nil, invalid("the path has %d bytes", len(full))
		}
		if d := l.dirs[full]; d != nil {
			release()
			cur, owned = d, false
			continue
		}
		fd, err := openDir(cur.fd, c)
		if errors.Is(err, unix.ENOENT) && create {
			if err = unix.Mkdirat(cur.fd, c, 0o755); err == nil {
				l.inodes++
				l.bytes += block
				l.implied[full] = struct{}{}
				// The umask of the process is not the image's.
				if fd, err = openDir(cur.fd, c); err == nil {
					err = unix.Fchmod(fd, 0o755)
				}
			}
		}
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			var target string
			target, fd, err = l.notDir(cur, c, create)
			if err == nil && target != "" {
				if links++; links > maxLinks {
					release()
					return nil, invalid("%q is behind more than %d symbolic links", name, maxLinks)
				}
				rest = append(strings.Split(target, "/"), rest...)
				if path.IsAbs(target) {
					release()
					cur, owned = l.root, false
				}
				continue
			}
		}
		if err != nil {
			release()
			if errors.Is(err, unix.ENOENT) {
				return nil, invalid("the layer has no %q", full)
			}
			return nil, fmt.Errorf("open %q: %w", full, err)
		}
		release()
		cur, owned = &dir{fd: fd, path: full}, true
	}
	if owned {
		if d := l.dirs[cur.path]; d != nil {
			unix.Close(cur.fd)
			return d, nil
		}
		l.dirs[cur.path] = cur
	}
	return cur, nil
}

// notDir looks at what stands where a directory is needed: the target of a symbolic link, or a whiteout, which becomes an
// opaque directory, since what is put into it does not bring back what it hides.
func (l *layer) notDir(parent *dir, name string, create bool) (target string, fd int, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(parent.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return "", -1, err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		buf := make([]byte, maxName)
		n, err := unix.Readlinkat(parent.fd, name, buf)
		if err != nil {
			return "", -1, err
		}
		return string(buf[:n]), -1, nil
	case isWhiteout(&st) && create:
		if err := unix.Unlinkat(parent.fd, name, 0); err != nil {
			return "", -1, err
		}
		if err := unix.Mkdirat(parent.fd, name, 0o755); err != nil {
			return "", -1, err
		}
		if fd, err = openDir(parent.fd, name); err != nil {
			return "", -1, err
		}
		err := errors.Join(unix.Fchmod(fd, 0o755), unix.Fsetxattr(fd, OpaqueXattr, []byte("y"), 0))
		if err != nil {
			unix.Close(fd)
			return "", -1, err
		}
		return "", fd, nil
	}
	return "", -1, invalid("%q is not a directory", path.Join(parent.path, name))
}

// reopen opens a path that has no link in it. The caller closes it, unless it is the root.
func (l *layer) reopen(name string) (*dir, error) {
	if name == "" || name == "." || name == "/" {
		return l.root, nil
	}
	at, made := l.root.fd, false
	for c := range strings.SplitSeq(name, "/") {
		fd, err := openDir(at, c)
		if made {
			unix.Close(at)
		}
		if err != nil {
			return nil, fmt.Errorf("open %q: %w", name, err)
		}
		at, made = fd, true
	}
	return &dir{fd: at, path: name}, nil
}

func (l *layer) forgetDirs() {
	for name, d := range l.dirs {
		unix.Close(d.fd)
		delete(l.dirs, name)
	}
}

// RemoveAll removes what stands under name in the open directory at, without following a link.
func RemoveAll(at int, name string) error {
	err := unix.Unlinkat(at, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	fd, err := openDir(at, name)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			if err := RemoveAll(fd, n); err != nil {
				return err
			}
		}
		if err != nil || len(names) == 0 {
			break // io.EOF; a real error shows in rmdir
		}
		// Removing entries while reading may skip some: start over.
		if _, err := f.Seek(0, 0); err != nil {
			return err
		}
	}
	return unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
}
