package stats

import (
	"errors"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// kept are files of one cgroup that stay open for the next reading: opening such a file takes the kernel longer than
// reading it. Once a cgroup has been removed, each of its open files answers ENODEV, also where another cgroup has been
// made at the same path. So a reading is never one of a cgroup that has gone. It belongs to whoever has claimed the
// entry that it is of.
type kept struct {
	limit       *descriptors
	hierarchies *cgroup.Hierarchies
	path        string // of the cgroup
	files       []keptFile
	gone        bool // a file has answered that the cgroup is removed
}

// keptFile is a file by its name, which no other file of a cgroup has in any hierarchy that is read.
type keptFile struct {
	name  string
	state fileState
	fd    int       // of one that is open
	at    time.Time // when it was looked for, of one that is not open
}

type fileState uint8

const (
	absent fileState = iota
	present
	open
)

const (
	// keepFor is how long files stay open that nobody reads. It is longer than the interval of usual monitoring.
	keepFor = 2 * time.Minute
	// lookAgain is how long it is remembered whether a file is there that is not open.
	lookAgain = 30 * time.Second
	// mostKept is how many files stay open at most. The kernel needs 4.6 KiB for each, most of it a buffer.
	mostKept = 8192
	// leftToContainers is how many descriptors are not taken for this: those of 2,000 containers.
	leftToContainers = 2000 * 8
)

// descriptors counts the files that are kept open.
type descriptors struct {
	kept atomic.Int64
	most int64
	last int          // the highest number that a descriptor may have to be kept
	high atomic.Int64 // until when it is known that numbers are above it, in Unix ns
}

// newDescriptors are for a process with a limit of open files. Where that is low, all are left to containers.
// Numbers are given out from the lowest one on, so a descriptor in the upper half says that containers need many.
func newDescriptors(limit uint64) *descriptors {
	limit = min(limit, 1<<30)
	return &descriptors{most: int64(min(mostKept, limit-min(limit, leftToContainers))), last: int(limit / 2)}
}

// room tells whether one more file may stay open.
func (l *descriptors) room() bool {
	return l.kept.Load() < l.most && time.Now().UnixNano() > l.high.Load()
}

// take counts a file that is to stay open. It says false for one that may not.
func (l *descriptors) take(fd int) bool {
	if fd > l.last {
		l.high.Store(time.Now().Add(lookAgain).UnixNano())
		return false
	}
	if l.kept.Add(1) > l.most {
		l.kept.Add(-1)
		return false
	}
	return true
}

// close closes all files. The next reading opens those of the cgroup that is at the path then.
func (k *kept) close() {
	for _, f := range k.files {
		if f.state == open {
			unix.Close(f.fd)
			k.limit.kept.Add(-1)
		}
	}
	k.files, k.gone = nil, false
}

// found tells whether any file was there.
func (k *kept) found() bool {
	for i := range k.files {
		if k.files[i].state != absent {
			return true
		}
	}
	return false
}

// file is what is remembered of a file. Where that is nothing, or too old, it is looked for.
func (k *kept) file(name string, look func(*keptFile)) *keptFile {
	for i := range k.files {
		if f := &k.files[i]; f.name == name {
			if f.state != open && time.Since(f.at) > lookAgain {
				look(f)
			}
			return f
		}
	}
	k.files = append(k.files, keptFile{name: name})
	f := &k.files[len(k.files)-1]
	look(f)
	return f
}

// read reads a file in a controller's hierarchy, as directory.read.
func (k *kept) read(controller, name string, buf []byte) (text []byte) {
	f := k.file(name, func(f *keptFile) {
		f.state, f.at = absent, time.Now()
		dir := k.hierarchies.Dir(controller, k.path)
		if dir == "" {
			return
		}
		fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		switch {
		case err != nil:
		case k.limit.take(fd):
			f.state, f.fd = open, fd
		default:
			f.state, f.at = present, time.Time{} // it is opened for each reading
			text = k.readFrom(fd, buf)
			unix.Close(fd)
		}
	})
	if f.state == open {
		return k.readFrom(f.fd, buf)
	}
	return text
}

func (k *kept) readFrom(fd int, buf []byte) []byte {
	for {
		n, err := unix.Pread(fd, buf, 0)
		switch {
		case err == nil && n >= 0:
			return buf[:n]
		case errors.Is(err, unix.EINTR):
		default:
			k.gone = k.gone || errors.Is(err, unix.ENODEV)
			return nil
		}
	}
}

// has tells whether a file is in a controller's hierarchy.
func (k *kept) has(controller, name string) bool {
	f := k.file(name, func(f *keptFile) {
		f.state, f.at = absent, time.Now()
		dir := k.hierarchies.Dir(controller, k.path)
		if dir != "" && unix.Faccessat(unix.AT_FDCWD, filepath.Join(dir, name), unix.F_OK, 0) == nil {
			f.state = present
		}
	})
	return f.state != absent
}
