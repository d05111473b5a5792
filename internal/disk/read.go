package disk

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// ReadFile is os.ReadFile for a small file on a disk. It takes four system calls where that takes seven, which counts
// when berthd starts and reads the records of a thousand pods.
func ReadFile(path string) ([]byte, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	// The read that returns less than it could is the last: a file that was cut or has grown meanwhile is read on.
	data := make([]byte, 0, min(max(st.Size, 0), maxHint)+1)
	for {
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		n, err := retry(func() (int, error) { return unix.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		data = data[:len(data)+n]
		if n == 0 || int64(len(data)) == st.Size && len(data) < cap(data) {
			return data, nil
		}
	}
}

// maxHint bounds the memory that is taken because a file says that it is large.
const maxHint = 1 << 20

// retry calls a function again that a signal has cut off.
func retry(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); err != unix.EINTR {
			return n, err
		}
	}
}
