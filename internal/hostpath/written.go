package hostpath

import (
	"errors"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// MakeDir makes a directory to which Berth writes at a path that a client has chosen, and those above it that are
// missing, and returns its path without links. The path is one in the mount namespace of this process. A child is
// needed only if the directory is not in the kernel's cache, and it may be on another file system than own or behind a
// link. own is a directory of Berth's, without which it cannot work anyway. Errors are as Create's.
func MakeDir(own, path string) (string, error) {
	if dir, ok := KnownDir(path); ok {
		return dir, nil
	}
	if dir, ok := makeNear(own, path); ok {
		return dir, nil
	}
	var r Resolved
	err := written.ask(actCreate, path, &r, nil)
	return r.Path, err
}

// KnownDir returns the path without links of a directory as MakeDir makes them. ok is false if the kernel does not have
// it in its cache: then it may exist all the same.
func KnownDir(path string) (dir string, ok bool) {
	fd, err := openCached(unix.AT_FDCWD, path, unix.O_DIRECTORY, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	return pathOf(fd)
}

// ResolveDir returns the path without links of a directory as MakeDir makes them. Errors are as Resolve's.
func ResolveDir(path string) (string, error) {
	if dir, ok := KnownDir(path); ok {
		return dir, nil
	}
	var r Resolved
	err := written.ask(actResolve, path, &r, nil)
	return r.Path, err
}

// makeNear makes a directory without a child, from the last directory on that leads to own as well. This process goes
// through that one for its own files, so the file system there answers. The rest of the path must not leave that file
// system, and must have no links. If it does, or if anything fails, ok is false.
func makeNear(own, path string) (made string, ok bool) {
	near, rest := common(filepath.Clean(own), filepath.Clean(path))
	if near == "" {
		return "", false
	}
	dir, err := openUntilDone(func() (int, error) {
		return unix.Open(near, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return "", false
	}
	defer func() { unix.Close(dir) }()
	for _, name := range rest {
		next, err := openWithin(dir, name)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(dir, name, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = openWithin(dir, name)
			}
		}
		if err != nil {
			return "", false
		}
		unix.Close(dir)
		dir = next
	}
	return pathOf(dir)
}

// common splits a path into the directory that leads to another one too, and the names below it. near is empty if one
// of the two is not absolute.
func common(own, path string) (near string, rest []string) {
	if !filepath.IsAbs(own) || !filepath.IsAbs(path) {
		return "", nil
	}
	near = "/"
	of, names := strings.Split(own[1:], "/"), strings.Split(path[1:], "/")
	for len(of) > 0 && len(names) > 0 && of[0] == names[0] {
		near = filepath.Join(near, names[0])
		of, names = of[1:], names[1:]
	}
	return near, names
}

// openWithin opens a directory in another one, if it is on the same mount and no link.
func openWithin(dir int, name string) (int, error) {
	return openUntilDone(func() (int, error) {
		return unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS})
	})
}

func openUntilDone(open func() (int, error)) (int, error) {
	for {
		fd, err := open()
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
