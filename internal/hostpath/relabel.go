package hostpath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
)

// Relabel gives a file, or a directory with all that is in it, a label of SELinux; without its categories where it is
// shared. It takes as long as the tree is large, and ends with the context: whoever has given up must not label the
// files of a later pod. For the same reason the calls for one path come one after the other. The path has no links. The
// error wraps errdefs.ErrUnavailable where the file system does not answer any more.
func Relabel(ctx context.Context, path, fileLabel string, shared bool) error {
	how := "private"
	if shared {
		how = "shared"
	}
	release, err := relabels.take(ctx, filepath.Clean(path))
	if err != nil {
		return fmt.Errorf("wait for another relabelling of %s: %w", path, err)
	}
	defer release()
	var nothing any
	return stuck.during(ctx, actRelabel, path, &nothing, answers(path), fileLabel, how)
}

// turns lets one call at a time have a path.
type turns struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // each is closed when its call has ended
}

var relabels turns

// take waits for the call that has the path.
func (t *turns) take(ctx context.Context, path string) (release func(), err error) {
	own := make(chan struct{})
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t.mu.Lock()
		other, busy := t.taken[path]
		if !busy {
			if t.taken == nil {
				t.taken = map[string]chan struct{}{}
			}
			t.taken[path] = own
		}
		t.mu.Unlock()
		if !busy {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
		}
	}
	return func() {
		t.mu.Lock()
		delete(t.taken, path)
		t.mu.Unlock()
		close(own)
	}, nil
}

func relabel(path, fileLabel string, shared bool) error {
	if !selinux.GetEnabled() || fileLabel == "" {
		return nil
	}
	if shared {
		c, err := selinux.NewContext(fileLabel)
		if err != nil {
			return err
		}
		c["level"] = "s0"
		fileLabel = c.Get()
	}
	return (&relabelling{attribute: "security.selinux", label: fileLabel}).tree(path)
}

// ownLabels are directories that keep the labels which the node's policy gives them: go-selinux refuses them, too.
var ownLabels = []string{"/", "/bin", "/boot", "/dev", "/etc", "/etc/passwd", "/etc/pki", "/etc/shadow", "/home",
	"/lib", "/lib64", "/media", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/bin",
	"/usr/lib", "/usr/lib64", "/usr/sbin", "/var", "/var/lib", "/var/log"}

// relabelling gives the files of a tree a label. go-selinux does so by names: a container that runs in the volume
// can put a link in the place of a directory meanwhile, and have files of the node relabelled. Here each file is
// reached from the directory that it is in, and labelled by its descriptor.
type relabelling struct {
	attribute string
	label     string
	labelled  func(fd int) // for tests: called with each file that has been labelled
}

// tree labels what is at a path: the link itself, where that is one. Files that go away meanwhile are left out, and so
// are those of file systems without labels.
func (r *relabelling) tree(path string) error {
	path = filepath.Clean(path)
	fd, err := openNode(unix.AT_FDCWD, path)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	root := os.NewFile(uintptr(fd), path)
	defer root.Close()
	real, err := os.Readlink(procPath(fd))
	if err != nil {
		return err
	}
	if slices.Contains(ownLabels, path) || slices.Contains(ownLabels, real) {
		return fmt.Errorf("SELinux relabeling of %s is not allowed", path)
	}
	kind, err := r.give(fd)
	if err != nil || kind != unix.S_IFDIR {
		if errors.Is(err, unix.ENOTSUP) {
			return nil
		}
		return err
	}
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	opened := os.NewFile(uintptr(dir), path)
	defer opened.Close()
	tree := dirtree.New[struct{}](opened)
	tree.Mounts = true
	defer tree.Close()
	return tree.Walk(context.Background(), dirtree.Walk[struct{}]{
		Changing: true, NamesOnly: true,
		Visit: func(in *dirtree.Dir[struct{}], at int, name string, _ *unix.Stat_t) (*dirtree.Dir[struct{}], error) {
			kind, err := r.below(at, name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", in.PathOf(name), err)
			}
			if kind != unix.S_IFDIR {
				return nil, nil
			}
			return in.Below(name), nil
		},
	})
}

// below labels a file in an open directory, and tells its kind; 0: it has gone away.
func (r *relabelling) below(at int, name string) (kind uint32, err error) {
	fd, err := openNode(at, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	kind, err = r.give(fd)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ESTALE) {
		err = nil
	}
	return kind, err
}

// give labels an open file, and tells its kind. The descriptor may be of anything, a link too: the kernel goes to what
// it stands for, and follows it no further.
func (r *relabelling) give(fd int) (kind uint32, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	kind = st.Mode & unix.S_IFMT
	path := procPath(fd)
	had := make([]byte, len(r.label)+2) // the kernel's own has a NUL at its end
	n, err := unix.Getxattr(path, r.attribute, had)
	if err != nil || string(bytes.TrimRight(had[:n], "\x00")) != r.label {
		err = unix.EINTR
		for errors.Is(err, unix.EINTR) {
			err = unix.Setxattr(path, r.attribute, []byte(r.label), 0)
		}
		if err != nil {
			return kind, fmt.Errorf("set label %s: %w", r.label, err)
		}
	}
	if r.labelled != nil {
		r.labelled(fd)
	}
	return kind, nil
}

// openNode opens whatever is at a path, without following a link at its end and without what opening it would do.
func openNode(at int, path string) (int, error) {
	for {
		fd, err := unix.Openat(at, path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
