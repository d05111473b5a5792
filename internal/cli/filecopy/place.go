package filecopy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Place is one side of a copy.
type Place struct {
	Container string // the name of a pod or container; empty: this machine
	Path      string
}

// ParsePlace reads NAME:PATH, or a path of this machine. One of this machine that has a colon begins with / or a dot.
func ParsePlace(text string) (Place, error) {
	name, path, inside := strings.Cut(text, ":")
	if !inside || strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") {
		name, path = "", text
	}
	switch {
	case path == "":
		return Place{}, fmt.Errorf("%q has no path: give PATH, or POD[/CONTAINER]:PATH", text)
	case inside && name == "" && path != text:
		return Place{}, fmt.Errorf("%q has no name before the colon: give POD[/CONTAINER]:PATH", text)
	}
	return Place{name, path}, nil
}

func (p Place) String() string {
	if p.Container == "" {
		return p.Path
	}
	return p.Container + ":" + p.Path
}

// Tree is a root below which paths of one side of a copy are resolved.
type Tree struct {
	root     int // a descriptor of a container's root, or AT_FDCWD
	inside   bool
	uid, gid int // the owner of new files; -1: the user of this process
}

// Here is the file system of this machine.
func Here() *Tree { return &Tree{root: unix.AT_FDCWD, uid: -1, gid: -1} }

// OpenContainer opens the root of the container whose main process is pid. New files in it belong to the user of that
// process. The process has to be in the cgroup, which is the container's: a command that runs in another PID namespace
// than the runtime would otherwise copy into the root of some other process.
func OpenContainer(pid int, cgroup string) (*Tree, error) {
	if pid <= 0 {
		return nil, errors.New("the runtime does not say which process is the container's")
	}
	dir := fmt.Sprintf("/proc/%d", pid)
	groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return nil, err
	}
	if cgroup == "" || !strings.Contains(string(groups), cgroup) {
		return nil, fmt.Errorf("process %d of this machine is not in the container's cgroup %q: "+
			"copying needs the PID namespace of the runtime", pid, cgroup)
	}
	var owner unix.Stat_t
	if err := unix.Stat(dir, &owner); err != nil {
		return nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	root, err := unix.Open(dir+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir + "/root", Err: err}
	}
	return &Tree{root: root, inside: true, uid: int(owner.Uid), gid: int(owner.Gid)}, nil
}

// Close closes the root.
func (t *Tree) Close() {
	if t.root != unix.AT_FDCWD {
		_ = unix.Close(t.root)
	}
}

// open resolves a path that somebody gave, below the root. The descriptor can neither read nor write.
func (t *Tree) open(ctx context.Context, path string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags}
	if t.inside {
		how.Resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	}
	for {
		fd, err := unix.Openat2(t.root, path, &how)
		if err != unix.EAGAIN && err != unix.EINTR { // EAGAIN: a rename in the container raced with ".."
			return fd, err
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

// directory opens a directory into which something is to be copied.
func (t *Tree) directory(ctx context.Context, path string) (int, error) {
	fd, err := t.open(ctx, path, unix.O_DIRECTORY)
	if err == nil && t.inside && kernels(fd) {
		unix.Close(fd)
		return 0, errKernels
	}
	return fd, err
}
