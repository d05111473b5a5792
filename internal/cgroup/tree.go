package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup/nested"
)

// Create makes a cgroup in all hierarchies, with its parents. On V2 the available controllers are handed down to it. It
// is idempotent. Where a hierarchy refuses, what was made stays; Remove takes it away.
func (h *Hierarchies) Create(cgroup string) error {
	if h.Version == V2 {
		return h.createUnified(cgroup)
	}
	cpuset := h.Dir("cpuset", cgroup)
	for _, dir := range h.Dirs(cgroup) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		if dir == cpuset {
			if err := inheritCPUSet(dir, h.Dir("cpuset", "/")); err != nil {
				return fmt.Errorf("make cgroup: %w", err)
			}
		}
	}
	return nil
}

// Renew makes an empty cgroup in the hierarchies that have its parent. If there is such a cgroup already, Renew removes
// it first. The cgroup gets no limits and no processors: nothing is to run in it.
func (h *Hierarchies) Renew(cgroup string) error {
	if err := h.Rmdir(cgroup); err != nil {
		return err
	}
	for _, dir := range h.Dirs(cgroup) {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	return nil
}

// Rmdir removes a cgroup that nothing is in, in all hierarchies, without waiting: where a process or another cgroup
// is in it, the error is EBUSY. It is idempotent.
func (h *Hierarchies) Rmdir(cgroup string) error {
	if path.Join("/", cgroup) == "/" {
		return errors.New("remove cgroup: the root is not removed")
	}
	var errs []error
	for _, dir := range h.Dirs(cgroup) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

func (h *Hierarchies) createUnified(cgroup string) error {
	dir := h.Unified
	for part := range strings.SplitSeq(strings.Trim(path.Join("/", cgroup), "/"), "/") {
		if part == "" {
			continue
		}
		h.handDown(dir)
		dir = path.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	return nil
}

// handDown enables each controller for the children of dir. One that the kernel refuses there (a threaded or a busy
// cgroup, a controller that the parent lacks) is not an error here: what needs it says so when it writes a limit.
func (h *Hierarchies) handDown(dir string) {
	on, err := os.ReadFile(path.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return
	}
	enabled := strings.Fields(string(on))
	for _, controller := range h.available {
		if !slices.Contains(enabled, controller) {
			_ = os.WriteFile(path.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
		}
	}
}

// inheritCPUSet fills empty cpuset files from the parent, root first: v1 refuses processes in a cpuset without them.
func inheritCPUSet(dir, root string) error {
	if dir == root || !strings.HasPrefix(dir, root) {
		return nil
	}
	parent := path.Dir(dir)
	if err := inheritCPUSet(parent, root); err != nil {
		return err
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		now, err := os.ReadFile(path.Join(dir, name))
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(now)) > 0 {
			continue
		}
		from, err := os.ReadFile(path.Join(parent, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(path.Join(dir, name), from, 0); err != nil {
			return err
		}
	}
	return nil
}

// cloneCPUSets lets cgroups that are made below a cgroup from now on begin with their parent's processors and memory
// nodes, where the kernel would give them none. To write them visits all cpusets of the node, and there are four such
// writes for the cgroups of a pod and a container. It is for V1, whose cpusets are empty at first.
func (h *Hierarchies) cloneCPUSets(cgroup string) error {
	dir := h.Dir("cpuset", cgroup)
	if h.Version == V2 || dir == "" {
		return nil
	}
	if err := os.WriteFile(path.Join(dir, "cgroup.clone_children"), []byte("1"), 0); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}

// Remove removes a cgroup and all cgroups below it, in all hierarchies. It is idempotent. It kills nothing: while
// processes are in one, it tries again until ctx ends and then says EBUSY.
func (h *Hierarchies) Remove(ctx context.Context, cgroup string) error {
	if path.Join("/", cgroup) == "/" {
		return errors.New("remove cgroup: the root is not removed")
	}
	dirs := h.Dirs(cgroup)
	var busy error
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		var errs []error
		for _, dir := range dirs {
			if err := removeTree(ctx, dir); err != nil {
				errs = append(errs, err)
			}
		}
		err := errors.Join(errs...)
		if busy != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return busy // ctx has ended meanwhile
		}
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return err
		}
		busy = err
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// RemoveEmpty removes a cgroup in all hierarchies, but none that is in it: where there is one in any of them,
// of Berth or of somebody else, the error is EBUSY at once, and nothing is removed. While processes are in it,
// it tries again until ctx ends and then says EBUSY. It is idempotent.
func (h *Hierarchies) RemoveEmpty(ctx context.Context, cgroup string) error {
	if path.Join("/", cgroup) == "/" {
		return errors.New("remove cgroup: the root is not removed")
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		if err := h.alone(cgroup); err != nil {
			return err
		}
		var errs []error
		for _, dir := range h.Dirs(cgroup) {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
			}
		}
		err := errors.Join(errs...)
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// alone is EBUSY where there is a cgroup in a cgroup.
func (h *Hierarchies) alone(cgroup string) error {
	for _, dir := range h.Dirs(cgroup) {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err == unix.ENOENT || err == nil && st.Nlink == 2 {
			continue // the kernel counts the directories in a cgroup, which has dozens of files too
		}
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cgroup: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				return fmt.Errorf("remove cgroup %s: %s is in it: %w", dir, e.Name(), unix.EBUSY)
			}
		}
	}
	return nil
}

func removeTree(ctx context.Context, dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err := nested.Remove(ctx, dir); err != nil {
		return err
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

// Processes are the process IDs in a cgroup and all cgroups below it, each once, sorted.
func (h *Hierarchies) Processes(cgroup string) ([]int, error) {
	var pids []int
	for _, dir := range h.Dirs(cgroup) {
		list, err := nested.Processes(dir)
		pids = append(pids, list...)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			err = nil
		}
		if err != nil {
			return nil, fmt.Errorf("processes of cgroup %s: %w", cgroup, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}
