package stats

import (
	"errors"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// directory is a cgroup directory: an open one, whose files are read relative to it, or one whose files are kept open.
// They are read into one buffer.
type directory struct {
	fd         int
	buf        []byte
	kept       *kept // nil: the directory is open
	controller string
	visit      *visit // nil: it is opened for one use
}

func openDirectory(path string, buf []byte) (directory, error) {
	if path == "" {
		return directory{fd: -1}, fs.ErrNotExist
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return directory{fd: -1}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return directory{fd: fd, buf: buf}, nil
}

func (d directory) close() {
	if d.fd >= 0 && d.visit == nil {
		unix.Close(d.fd)
	}
}

// read is a file's content, valid until the next read; nil if it is not there. What does not fit the buffer is cut.
func (d directory) read(name string) []byte {
	if d.kept != nil {
		return d.kept.read(d.controller, name, d.buf)
	}
	if d.visit != nil {
		return d.visit.read(d.fd, name)
	}
	return readAt(d.fd, name, d.buf)
}

// readAt reads a file in an open directory; nil if it is not there. What does not fit the buffer is cut.
func readAt(dir int, name string, buf []byte) []byte {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	// A cgroup's file is made in one piece: what one read leaves out did not fit.
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n < 0 {
			return nil
		}
		return buf[:n]
	}
}

// has tells whether a file is there.
func (d directory) has(name string) bool {
	if d.kept != nil {
		return d.kept.has(d.controller, name)
	}
	return unix.Faccessat(d.fd, name, unix.F_OK, 0) == nil
}

// number reads a file that is one number. Words ("max") and files that are not there are no number.
func (d directory) number(name string) (uint64, bool) { return parseUint(firstWord(d.read(name))) }

func firstWord(b []byte) []byte {
	for i, c := range b {
		if c == ' ' || c == '\n' || c == '\t' {
			return b[:i]
		}
	}
	return b
}

func parseUint(b []byte) (uint64, bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	var v uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = v*10 + uint64(c-'0')
	}
	return v, true
}

// pairs calls f for each line `key value`.
func pairs(b []byte, f func(key []byte, value uint64)) {
	for len(b) > 0 {
		line := nextLine(&b)
		key := firstWord(line)
		if len(key) == len(line) {
			continue
		}
		if v, ok := parseUint(firstWord(line[len(key)+1:])); ok {
			f(key, v)
		}
	}
}

func nextLine(b *[]byte) []byte {
	for i, c := range *b {
		if c == '\n' {
			line := (*b)[:i]
			*b = (*b)[i+1:]
			return line
		}
	}
	line := *b
	*b = nil
	return line
}

func nextWord(b *[]byte) []byte {
	for len(*b) > 0 && (*b)[0] == ' ' {
		*b = (*b)[1:]
	}
	word := firstWord(*b)
	*b = (*b)[len(word):]
	return word
}

func parseFloat(b []byte) float64 {
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return 0
	}
	return v
}
