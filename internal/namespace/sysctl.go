package namespace

import (
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// WriteSysctl writes a sysctl of the namespaces that the calling thread is in. The path is below /proc/sys. A sysctl
// that is not there is os.ErrNotExist.
func WriteSysctl(path, value string) error {
	p := sysctls.take()
	defer sysctls.release(p)
	f, err := p.open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}

// sysctls is the procfs that WriteSysctl uses.
var sysctls instances

// instances gives out a procfs that nobody else has, and another one after some uses. A procfs keeps a name below
// sys/net for each network namespace in which the name was looked up, and all that have one name are in one list:
// to write a sysctl of one more pod below /proc compares it with those of all other pods. With 400 pods on a node, this
// took a tenth of berthd's processor time for a start.
type instances struct {
	mu  sync.Mutex // guards what is below
	now *instance
}

// instance is a procfs that is mounted nowhere. Its fields are guarded by the lock of instances.
type instance struct {
	file  *os.File // nil: it is /proc
	taken int      // how often
	users int
	old   bool // another one is given out: the last user closes this one
}

// maxTaken is how many names of a kind a procfs has at most. A new procfs takes about as long as the comparison with
// 200 names.
const maxTaken = 64

// take returns a procfs: /proc where there can be no other (before Linux 5.8, or without the right to mount one).
func (s *instances) take() *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil && s.now.taken == maxTaken {
		s.now.old = true
		if s.now.users == 0 {
			s.now.close()
		}
		s.now = nil
	}
	if s.now == nil {
		s.now = newInstance()
	}
	s.now.taken++
	s.now.users++
	return s.now
}

func (s *instances) release(p *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.users--; p.users == 0 && p.old {
		p.close()
	}
}

func newInstance() *instance {
	file, err := mountProc()
	if err != nil {
		return &instance{}
	}
	return &instance{file: file}
}

// mountProc makes a procfs. Its mount is in no mount namespace, and ends with the file.
func mountProc() (*os.File, error) {
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, err
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "procfs"), nil
}

// open opens a sysctl. The name in an error is that below /proc, which is what readers know.
func (p *instance) open(path string) (*os.File, error) {
	name := filepath.Join("/proc/sys", path)
	if p.file == nil {
		return os.OpenFile(name, os.O_WRONLY, 0)
	}
	fd, err := unix.Openat(int(p.file.Fd()), filepath.Join("sys", path), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (p *instance) close() {
	if p.file != nil {
		p.file.Close()
	}
}
