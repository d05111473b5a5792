package hostpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Node is a file as stat(2) tells of it. A link is not followed.
type Node struct {
	Path         string `json:"path"`
	Mode         uint32 `json:"mode"` // with its type, as st_mode
	Major, Minor uint32 // of a device
	UID, GID     uint32
}

// IsDevice tells whether it is a character or a block device.
func (n *Node) IsDevice() bool {
	kind := n.Mode & unix.S_IFMT
	return kind == unix.S_IFCHR || kind == unix.S_IFBLK
}

func (n *Node) fill(dir int, path string, flags int) error {
	var st unix.Statx_t
	if err := unix.Statx(dir, path, flags, unix.STATX_BASIC_STATS, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: n.Path, Err: err}
	}
	n.Mode, n.Major, n.Minor, n.UID, n.GID = uint32(st.Mode), st.Rdev_major, st.Rdev_minor, st.Uid, st.Gid
	return nil
}

// Stat tells of the file at an absolute path. The error wraps fs.ErrNotExist where there is none,
// and errdefs.ErrUnavailable where a file system does not answer within some seconds.
func Stat(path string) (Node, error) {
	n := Node{Path: path}
	if fd, err := openKnown(path, unix.O_NOFOLLOW); err == nil {
		defer unix.Close(fd)
		if n.fill(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC) == nil {
			return n, nil
		}
	}
	err := ask(actNode, path, &n, nil)
	return n, err
}

func nodeAt(path string) (Node, error) {
	n := Node{Path: path}
	return n, n.fill(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
}

// Present are those of the names that lead to a file in a directory. The error is errdefs.ErrUnavailable where the file
// system does not answer within some seconds. One child looks for all names, unless the kernel has them in its cache.
func Present(dir string, names []string) ([]string, error) {
	if !slices.ContainsFunc(names, func(name string) bool {
		fd, err := openKnown(filepath.Join(dir, name), 0)
		if err == nil {
			unix.Close(fd)
		}
		return err != nil
	}) {
		return names, nil
	}
	var found []string
	err := ask(actPresent, dir, &found, nil, names...)
	return found, err
}

func present(dir string, names []string) (found []string) {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			found = append(found, name)
		}
	}
	return found
}

// DevicesBelow are the devices in a directory and in those below it, with errors as Stat has them. A child looks,
// whatever is in the kernel's cache: it takes some milliseconds.
func DevicesBelow(dir string) ([]Node, error) {
	var found []Node
	err := ask(actBelow, dir, &found, answers(dir))
	return found, err
}

func devicesBelow(dir string) (found []Node, err error) {
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.Type()&fs.ModeDevice == 0 {
			return err
		}
		n, err := nodeAt(name)
		if err == nil && n.IsDevice() {
			found = append(found, n)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("devices in %s: %w", dir, err)
	}
	return found, err
}

// answers asks a file system whose answer takes longer, by a second child, whether it answers at all. One that takes
// from a cache of its own does so as long as that lasts, which is a minute for NFS.
func answers(path string) func() bool {
	return func() bool {
		var r Resolved
		return ask(actResolve, path, &r, nil) == nil
	}
}
