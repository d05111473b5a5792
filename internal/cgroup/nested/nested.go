// Package nested knows the cgroups in a cgroup. A container that may make cgroups in its own may make them deeper than
// a path can be, so they are reached by descriptors.
package nested

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
)

// leaf is how many links the directory of a cgroup has that has no other one in it: the kernel counts the directories
// in one. A leaf need not be listed, and has up to eighty files.
const leaf = 2

type dir = dirtree.Dir[struct{}]

// Processes are the IDs of the processes in the cgroup of a directory and in all below it, in no order. Cgroups that
// are removed meanwhile are passed over, but for the first one.
func Processes(path string) (pids []int, err error) {
	pids, err = members(unix.AT_FDCWD, path+"/cgroup.procs", nil)
	if errors.Is(err, unix.EOPNOTSUPP) { // it is a threaded one, and has threads only
		pids, err = members(unix.AT_FDCWD, path+"/cgroup.threads", nil)
	}
	if err != nil {
		return nil, &os.PathError{Op: "read the processes of", Path: path, Err: err}
	}
	root, err := open(path)
	if root == nil {
		return pids, err
	}
	defer root.Close()
	err = walk(context.Background(), root, func(at int, name string) error {
		var err error
		pids, err = members(at, name+"/cgroup.procs", pids)
		if errors.Is(err, unix.EOPNOTSUPP) { // its processes are those of one above it
			err = nil
		}
		return err
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("processes of the cgroups in %s: %w", path, err)
	}
	return pids, nil
}

// members adds the numbers in a file of a cgroup to a list.
func members(at int, file string, pids []int) ([]int, error) {
	fd, err := unix.Openat(at, file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return pids, err
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if pid, err := strconv.Atoi(lines.Text()); err == nil && pid > 0 { // 0: of another PID namespace
			pids = append(pids, pid)
		}
	}
	return pids, lines.Err()
}

// Thaw thaws all cgroups of version 1's freezer in that of a directory, but not that one, each before those in it. It
// does what it can, also if one of them cannot be thawed.
func Thaw(path string) error {
	root, err := open(path)
	if root == nil {
		return err
	}
	defer root.Close()
	var errs []error
	err = walk(context.Background(), root, func(at int, name string) error {
		if err := thaw(at, name); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("%.100q: %w", name, err))
		}
		return nil
	}, nil)
	if err = errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("thaw the cgroups in %s: %w", path, err)
	}
	return nil
}

func thaw(at int, name string) error {
	fd, err := unix.Openat(at, name+"/freezer.state", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("THAWED"))
	return err
}

// Remove removes all cgroups in that of a directory, but not that one. It kills nothing: while processes are in one of
// them, it fails with EBUSY. In a cgroup that is not there is nothing.
func Remove(ctx context.Context, path string) error {
	root, err := open(path)
	if root == nil {
		return err
	}
	defer root.Close()
	err = walk(ctx, root, nil, func(at int, name string) error { return unix.Unlinkat(at, name, unix.AT_REMOVEDIR) })
	if err != nil {
		return fmt.Errorf("remove the cgroups in %s: %w", path, err)
	}
	return nil
}

// open opens the directory of a cgroup. It is nil without an error if no cgroup is in it.
func open(path string) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if err == nil && st.Nlink != leaf {
		var root *os.File
		if root, err = os.Open(path); err == nil {
			return root, nil
		}
	}
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	return nil, err
}

// walk calls enter with each directory below an open one, before those in it, and leave after them. Both are given the
// directory that it is in, and its name. What is gone by then is no error.
func walk(ctx context.Context, root *os.File, enter, leave func(at int, name string) error) error {
	call := func(f func(int, string) error, at int, name string) error {
		if f == nil {
			return nil
		}
		if err := f(at, name); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("%.100q: %w", name, err) // whoever has made it has given it its name
		}
		return nil
	}
	tree := dirtree.New[struct{}](root)
	defer tree.Close()
	return tree.Walk(ctx, dirtree.Walk[struct{}]{
		Changing: true,
		Visit: func(in *dir, at int, name string, st *unix.Stat_t) (*dir, error) {
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return nil, nil
			}
			if err := call(enter, at, name); err != nil {
				return nil, err
			}
			if st.Nlink == leaf {
				return nil, call(leave, at, name)
			}
			return in.Below(name), nil
		},
		Leave: func(d *dir) error {
			if d.Parent() == nil || leave == nil {
				return nil
			}
			at, err := tree.FD(d.Parent())
			if err != nil {
				return err
			}
			return call(leave, at, d.Name())
		},
	})
}
