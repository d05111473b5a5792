package hostpath

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/disk"
	"berth/internal/mountns"
)

// Resolved is a path without links.
type Resolved struct {
	Path string `json:"path"`
	// Mount is the ID of the mount that it is on, as in mountinfo; 0: this kernel does not say (before Linux 5.8).
	Mount uint64 `json:"mount,omitempty"`
	// Unique is another ID of that mount, which no other mount ever has; 0: this kernel does not say (before Linux 6.8).
	Unique uint64 `json:"unique,omitempty"`
	Dir    bool   `json:"dir,omitempty"`
}

// look adds what the kernel knows of a file without asking a server again.
func (r *Resolved) look(dir int, path string, flags int) error {
	var st unix.Statx_t
	if err := unix.Statx(dir, path, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID|unix.STATX_TYPE, &st); err != nil {
		return fmt.Errorf("statx %s: %w", r.Path, err)
	}
	if st.Mask&unix.STATX_MNT_ID != 0 {
		r.Mount = st.Mnt_id
	}
	r.Dir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	// The kernel gives one of the two.
	err := unix.Statx(dir, path, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID_UNIQUE, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
		r.Unique = st.Mnt_id
	}
	return nil
}

// Resolve follows the links of an absolute path. The error wraps fs.ErrNotExist where it leads nowhere,
// and errdefs.ErrUnavailable where a file system does not answer within some seconds.
func Resolve(path string) (Resolved, error) {
	if r, ok := known(path); ok {
		return r, nil
	}
	var r Resolved
	err := ask(actResolve, path, &r, nil)
	return r, err
}

const resolveCached = 0x20 // RESOLVE_CACHED of linux/openat2.h

// openKnown opens what the kernel has in its cache, with O_PATH and further flags.
func openKnown(path string, flags uint64) (int, error) {
	dir, resolve := unix.AT_FDCWD, uint64(0)
	if root := mountns.Root(); root != nil && !mountns.Own(path) {
		dir, resolve = int(root.Fd()), unix.RESOLVE_IN_ROOT
	}
	return openCached(dir, path, flags, resolve)
}

// openCached opens a path from a directory on if the kernel has it in its cache, with O_PATH and further flags.
func openCached(dir int, path string, flags, resolve uint64) (int, error) {
	return unix.Openat2(dir, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: resolveCached | resolve})
}

// known resolves what the kernel has in its cache and needs nobody's answer for (RESOLVE_CACHED, Linux 5.12).
// Of a network file system that is nothing: each step is checked with the server.
func known(path string) (r Resolved, ok bool) {
	fd, err := openKnown(path, 0)
	if err != nil {
		return r, false
	}
	defer unix.Close(fd)
	if r.Path, ok = pathOf(fd); !ok {
		return r, false
	}
	return r, r.look(fd, "", unix.AT_EMPTY_PATH) == nil
}

// pathOf is where an open file is, without links.
func pathOf(fd int) (path string, ok bool) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlink(procPath(fd), buf)
	if err != nil || n == len(buf) {
		return "", false
	}
	path = string(buf[:n])
	// Else it has none, or is one that is called so.
	return path, strings.HasPrefix(path, "/") && !strings.HasSuffix(path, " (deleted)")
}

// wait resolves a path in a child, which may wait for a file system that does not answer.
func wait(path string) (r Resolved, err error) {
	if r.Path, err = filepath.EvalSymlinks(path); err != nil {
		return r, err
	}
	return r, r.look(unix.AT_FDCWD, r.Path, 0)
}

// Create makes a directory, and those above it that are missing, root's and with mode 0755, and resolves it.
// One that is there is left as it is. Errors are as Resolve's.
func Create(path string) (Resolved, error) {
	var r Resolved
	err := ask(actCreate, path, &r, nil)
	return r, err
}

// create is what the child does, which has a umask of its own to change.
func create(path string) (r Resolved, err error) {
	unix.Umask(0)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return r, disk.Exhausted(err)
	}
	return wait(path)
}

func unanswered(path string) error {
	return fmt.Errorf("the file system of %s does not answer: %w", path, errdefs.ErrUnavailable)
}
