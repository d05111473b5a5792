package logpart

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrMoved is the error of a log whose name is not that of its file any more: somebody else is about to rotate it, or
// has removed it.
var ErrMoved = errors.New("another program has renamed or removed the file of the log")

// nameTries is how many names more are tried for a part, a microsecond apart.
const nameTries = 1000

// Rotated is a log that was rotated.
type Rotated struct {
	File *os.File // the new file, which has the log's name
	Part string   // the name that the old file has now
}

// Rotate renames the file of the log at path, which is current, to the name of a part, and opens a new file at path as
// Open does. It works in the directory that it has opened, and renames no other file than current. If it fails, current
// has the log's name as before.
func Rotate(path string, current *os.File, at time.Time) (*Rotated, error) {
	dir, err := openDir(path)
	if err != nil {
		return nil, err
	}
	list := os.NewFile(uintptr(dir), filepath.Dir(path))
	defer list.Close()
	base := filepath.Base(path)
	var open, named unix.Stat_t
	if err := unix.Fstat(int(current.Fd()), &open); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: path, Err: err}
	}
	err = unix.Fstatat(dir, base, &named, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT || err == nil && (named.Dev != open.Dev || named.Ino != open.Ino) {
		return nil, ErrMoved
	}
	if err != nil {
		return nil, &os.PathError{Op: "fstatat", Path: path, Err: err}
	}
	names, err := list.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	part := ""
	for try := 0; ; try++ {
		part = Next(base, names, at)
		if err = rename(dir, base, part); err != unix.EEXIST || try == nameTries {
			break
		}
		names = append(names, part) // somebody else has made it meanwhile
	}
	if err == unix.ENOENT {
		return nil, ErrMoved
	}
	if err != nil {
		return nil, &os.LinkError{Op: "rename", Old: path, New: part, Err: err}
	}
	file, err := openAt(dir, base, path)
	if err != nil {
		// The output goes on in the old file, which a follower has to find by the log's name.
		if back := rename(dir, part, base); back != nil {
			err = errors.Join(err, &os.LinkError{Op: "rename", Old: part, New: path, Err: back})
		}
		return nil, err
	}
	return &Rotated{File: file, Part: part}, nil
}

// Back gives a part that its log was just renamed to the log's name again. If the log has a new file already, the error
// is fs.ErrExist, and nothing has changed: that file may be written to.
func Back(part, path string) error {
	if err := rename(unix.AT_FDCWD, part, path); err != nil {
		return &os.LinkError{Op: "rename", Old: part, New: path, Err: err}
	}
	return nil
}

// Prune removes the oldest parts of the log at path, such that keep are left, and returns how many bytes they had. A
// part that is no regular file is not removed.
func Prune(path string, keep int) (removed int64, err error) {
	dir, err := openDir(path)
	if err != nil {
		return 0, err
	}
	list := os.NewFile(uintptr(dir), filepath.Dir(path))
	defer list.Close()
	names, err := list.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	parts := Of(filepath.Base(path), names)
	var errs []error
	for _, part := range parts[:max(len(parts)-keep, 0)] {
		var st unix.Stat_t
		err := unix.Fstatat(dir, part, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if err == nil {
			err = unix.Unlinkat(dir, part, 0)
		}
		switch err {
		case nil:
			removed += st.Size
		case unix.ENOENT: // a kubelet was faster
		default:
			errs = append(errs, &os.PathError{Op: "remove", Path: filepath.Join(filepath.Dir(path), part), Err: err})
		}
	}
	return removed, errors.Join(errs...)
}

// Open opens the file of a log. A symbolic link in the last component is refused: a user who can write to the directory
// of a log must not be able to redirect its writer to another file.
func Open(path string) (*os.File, error) { return openAt(unix.AT_FDCWD, path, path) }

func openAt(dir int, name, path string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|
		unix.O_NONBLOCK, 0o640)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, fmt.Errorf("open %s: not a regular file", path)
	}
	_ = unix.SetNonblock(fd, false)
	return os.NewFile(uintptr(fd), path), nil
}

// openDir opens the directory of a log.
func openDir(path string) (int, error) {
	dir := filepath.Dir(path)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, nil
}

// rename renames a file of a directory, and never over another one. Some file systems cannot promise that; there the
// name is looked up before.
func rename(dir int, from, to string) error {
	err := unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE)
	if err != unix.EINVAL && err != unix.ENOSYS {
		return err
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(dir, to, &st, unix.AT_SYMLINK_NOFOLLOW); err {
	case unix.ENOENT:
		return unix.Renameat(dir, from, dir, to)
	case nil:
		return unix.EEXIST
	default:
		return err
	}
}
