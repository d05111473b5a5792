package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unfinished ends the name of the file that WriteFile writes before it renames it. Only a crash leaves one.
const Unfinished = ".tmp"

// WriteFile replaces a file, or makes one of the given permissions (before the umask). Readers, and whoever looks
// after a crash of the process, see the old content or the new one, never a part. The file is not synced: after a
// power failure it may be either, or torn. When WriteFile fails, the old file is as it was and nothing is left beside
// it. Callers keep two writers of one path apart.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	return replaceFile(path, data, perm, os.WriteFile)
}

// WriteFileSynced is WriteFile for what has to outlive a power failure too: after one there is the old content or the
// new one, and the new one once WriteFileSynced has returned. It waits for the disk. Where only the sync of the
// directory fails, the file has its new content.
func WriteFileSynced(path string, data []byte, perm fs.FileMode) error {
	if err := replaceFile(path, data, perm, writeSynced); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

func writeSynced(path string, data []byte, perm fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

func replaceFile(path string, data []byte, perm fs.FileMode, write func(string, []byte, fs.FileMode) error) error {
	unfinished := path + Unfinished
	err := write(unfinished, data, perm)
	if err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		if rerr := os.Remove(unfinished); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// SyncDir brings the names in a directory to the disk: after a failure of power, a file that was renamed to one of them
// or removed is still renamed or removed.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// WriteOrOverwrite is WriteFile with permissions for the owner alone. Where the disk has no room for a second file, a
// file that is there is overwritten in place, so a crash may leave a mixture then (see Overwrite).
func WriteOrOverwrite(path string, data []byte) error {
	err := WriteFile(path, data, 0o600)
	if Full(err) {
		if _, statErr := os.Lstat(path); statErr == nil {
			_, err = Overwrite(path, data)
		}
	}
	return err
}

// Overwrite makes data all that a file holds, in place, in room that the file has or finds on the disk: it may
// succeed where the disk has no room for a second file. A file that is not there is made, for its owner alone; a
// symbolic link is not followed. What is longer than the old content is written first: intact says that the file,
// which the disk had no room for, is as it was. A crash may leave a mixture, so the content must carry a checksum.
func Overwrite(path string, data []byte) (intact bool, err error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return true, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		intact, err = replace(fd, st.Size, data)
	}
	if closed := unix.Close(fd); err == nil {
		err = closed
	}
	if err != nil {
		if st.Size == 0 {
			_ = os.Remove(path) // it was made for this, or held nothing
		}
		return intact, &os.PathError{Op: "write", Path: path, Err: err}
	}
	return true, nil
}

// replace writes data in place of the size bytes that an open file holds.
func replace(fd int, size int64, data []byte) (intact bool, err error) {
	old := min(size, int64(len(data)))
	if _, err = pwrite(fd, data[old:], old); err != nil {
		return unix.Ftruncate(fd, size) == nil, err
	}
	n, err := pwrite(fd, data[:old], 0)
	if err != nil {
		return n == 0 && unix.Ftruncate(fd, size) == nil, err
	}
	if size > int64(len(data)) {
		err = unix.Ftruncate(fd, int64(len(data)))
	}
	return false, err
}

// pwrite writes all of data at an offset, or tells how many bytes of it.
func pwrite(fd int, data []byte, at int64) (done int, err error) {
	for done < len(data) {
		n, err := unix.Pwrite(fd, data[done:], at+int64(done))
		if err != nil && err != unix.EINTR {
			return done, err
		}
		done += max(n, 0)
	}
	return done, nil
}
