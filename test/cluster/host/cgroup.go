package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"berth/test/node"
)

// hierarchy is a cgroup hierarchy of the machine.
type hierarchy struct {
	Name    string // of its directory in /sys/fs/cgroup; empty where that itself is the one of v2
	Type    string // cgroup or cgroup2
	Options []string
	Links   []string // what else leads there
}

func (h hierarchy) options() string {
	if len(h.Options) == 0 {
		return ""
	}
	return "," + strings.Join(h.Options, ",")
}

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies are those of the machine.
func hierarchies() ([]hierarchy, error) {
	infos, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, err
	}
	links := map[string][]string{}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(cgroupRoot, entry.Name())); err == nil {
			links[filepath.Base(target)] = append(links[filepath.Base(target)], entry.Name())
		}
	}
	var found []hierarchy
	for _, info := range infos {
		name, err := filepath.Rel(cgroupRoot, info.Mountpoint)
		if err != nil || strings.Contains(name, "/") {
			continue
		}
		h := hierarchy{Name: strings.TrimPrefix(name, "."), Type: info.FSType, Links: links[name]}
		if slices.ContainsFunc(found, func(other hierarchy) bool { return other.Name == h.Name }) {
			continue
		}
		for _, option := range strings.Split(info.VFSOptions, ",") {
			if info.FSType == "cgroup" && !slices.Contains([]string{"rw", "ro", "xattr", "clone_children"}, option) &&
				!strings.HasPrefix(option, "release_agent=") {
				h.Options = append(h.Options, option)
			}
		}
		found = append(found, h)
	}
	return found, nil
}

// makeCgroup makes the host's cgroup in a hierarchy and returns its directory.
func makeCgroup(h hierarchy, name string) (string, error) {
	parent := filepath.Join(cgroupRoot, h.Name)
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	// In a cpuset of v1 nothing may run before it has processors and memory nodes.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		inherited, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil || h.Type != "cgroup" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, file), inherited, 0); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// removeCgroups removes cgroups with all below them. Their processes are about to be gone.
func removeCgroups(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		deadline := time.Now().Add(node.Patience(20 * time.Second))
		for {
			err := removeCgroup(dir)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				errs = append(errs, err)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	var below []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			below = append(below, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, path := range slices.Backward(below) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the cgroup of a host: %w", err)
		}
	}
	return nil
}
