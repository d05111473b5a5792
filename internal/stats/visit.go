package stats

import (
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// visit opens each directory of one cgroup once, and reads each file once, for a reading that needs them in several
// places. Texts are valid until close.
type visit struct {
	hierarchies *cgroup.Hierarchies
	path        string // of the cgroup
	dirs        map[string]directory
	texts       map[string][]byte // by name: no two files of a cgroup have the same in hierarchies that are read
	free        []byte            // what is left of the buffer
	buf         *[]byte
}

func newVisit(h *cgroup.Hierarchies, path string) *visit {
	v := &visit{hierarchies: h, path: path, dirs: map[string]directory{}, texts: map[string][]byte{}}
	v.buf = buffers.Get().(*[]byte)
	v.free = *v.buf
	return v
}

// directory is that of a controller. Who gets it need not close it.
func (v *visit) directory(controller string) (directory, error) {
	path := v.hierarchies.Dir(controller, v.path)
	d, known := v.dirs[path]
	if !known {
		var err error
		if d, err = openDirectory(path, nil); err != nil {
			return d, err
		}
		v.dirs[path] = d
	}
	d.visit = v
	return d, nil
}

// read is directory.read.
func (v *visit) read(dir int, name string) []byte {
	if text, known := v.texts[name]; known {
		return text
	}
	text := readAt(dir, name, v.free)
	if len(text) == len(v.free) && len(v.free) < bufferSize { // it may be cut
		v.free = make([]byte, bufferSize)
		text = readAt(dir, name, v.free)
	}
	v.free = v.free[len(text):]
	v.texts[name] = text
	return text
}

func (v *visit) close() {
	for _, d := range v.dirs {
		unix.Close(d.fd)
	}
	buffers.Put(v.buf)
}
