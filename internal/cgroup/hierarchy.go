package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Version is the cgroup version that resources are controlled with.
type Version int

const (
	V1 Version = 1
	V2 Version = 2
)

// Hierarchies are the mounted hierarchies of a node. Immutable.
type Hierarchies struct {
	// Version is V2 only where the controllers are on the unified hierarchy; a v2 hierarchy beside v1 controllers is V1.
	Version Version
	// Unified is where the v2 hierarchy is mounted, on V1 too; empty: not mounted.
	Unified string

	controllers map[string]string // v1: controller (or name=…) to its mount point
	available   []string          // v2: what the root's cgroup.controllers lists
}

// Host is the node's hierarchies, read once.
var Host = sync.OnceValues(func() (*Hierarchies, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil {
		return nil, fmt.Errorf("cgroups: /sys/fs/cgroup: %w", err)
	}
	return Parse(f, fs.Type == unix.CGROUP2_SUPER_MAGIC, os.ReadFile)
})

// unifiedOptions are the options of the v2 hierarchy that a mount of it sets for the whole node: whoever is in the
// first cgroup namespace and mounts it again without them takes them away (the kernel's cgroup-v2.rst).
var unifiedOptions = []string{"nsdelegate", "favordynmods", "memory_localevents", "memory_recursiveprot",
	"memory_hugetlb_accounting", "pids_localevents"}

// UnifiedOptions are those of unifiedOptions that the node's v2 hierarchy has now.
func UnifiedOptions() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	defer f.Close()
	options, err := optionsOfUnified(f)
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	return options, nil
}

// optionsOfUnified reads no further than the first mount of the v2 hierarchy (see read).
func optionsOfUnified(mounts io.Reader) ([]string, error) {
	for lines := bufio.NewReader(mounts); ; {
		line, err := lines.ReadBytes('\n')
		if _, of, found := bytes.Cut(line, []byte(" - cgroup2 ")); found {
			var options []string
			if fields := strings.Fields(string(of)); len(fields) > 0 { // its source, and its options
				options = strings.Split(fields[len(fields)-1], ",")
			}
			return slices.DeleteFunc(options, func(option string) bool {
				return !slices.Contains(unifiedOptions, option)
			}), nil
		}
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// ownCgroups is the file that lists all hierarchies of the kernel, mounted or not, and the own cgroup in each.
const ownCgroups = "/proc/self/cgroup"

// Parse makes Hierarchies of a mountinfo file: unified says that /sys/fs/cgroup is a v2 hierarchy, and readFile reads
// the controllers that it has, and the list of all hierarchies.
func Parse(mounts io.Reader, unified bool, readFile func(string) ([]byte, error)) (*Hierarchies, error) {
	if unified {
		h := &Hierarchies{Version: V2, Unified: "/sys/fs/cgroup"}
		list, err := readFile(path.Join(h.Unified, "cgroup.controllers"))
		if err != nil {
			return nil, fmt.Errorf("cgroups: %w", err)
		}
		h.available = strings.Fields(string(list))
		return h, nil
	}
	list, err := readFile(ownCgroups)
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	h := &Hierarchies{Version: V1, controllers: map[string]string{}}
	if err := h.read(mounts, listed(list)); err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	if len(h.controllers) == 0 {
		return nil, errors.New("cgroups: no hierarchy is mounted at /sys/fs/cgroup")
	}
	return h, nil
}

// unifiedKey stands for the v2 hierarchy among the names of controllers.
const unifiedKey = ""

// listed are the controllers and names of all hierarchies in /proc/self/cgroup, whose lines are as
// "4:cpu,cpuacct:/system.slice" and, for the v2 hierarchy, "0::/system.slice".
func listed(list []byte) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		if fields := strings.SplitN(line, ":", 3); len(fields) == 3 {
			for name := range strings.SplitSeq(fields[1], ",") {
				names[name] = true
			}
		}
	}
	return names
}

// read takes the mount points of hierarchies from a mountinfo file, until it has those in wanted. The mounts of cgroups
// are among a node's first. A node with a thousand pods has five thousand mounts, and the kernel takes 20 ms to list
// them.
func (h *Hierarchies) read(mounts io.Reader, wanted map[string]bool) error {
	lines := bufio.NewReader(mounts)
	known := len(wanted) > 0 // otherwise the list is not one that this can read, and each mount counts
	for !known || len(wanted) > 0 {
		line, err := lines.ReadBytes('\n')
		if bytes.Contains(line, []byte(" - cgroup")) {
			found, err := mountinfo.GetMountsFromReader(bytes.NewReader(line), mountinfo.FSTypeFilter("cgroup", "cgroup2"))
			if err != nil {
				return err
			}
			for _, m := range found {
				h.add(m, wanted)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add takes the hierarchy of a mount, where it is the first mount of that hierarchy, and removes it from wanted.
func (h *Hierarchies) add(m *mountinfo.Info, wanted map[string]bool) {
	if m.FSType == "cgroup2" {
		if h.Unified == "" {
			h.Unified = m.Mountpoint
		}
		delete(wanted, unifiedKey)
		return
	}
	for option := range strings.SplitSeq(m.VFSOptions, ",") {
		switch option {
		case "rw", "ro", "none", "xattr", "clone_children", "noprefix", "release_agent":
			continue
		}
		if strings.HasPrefix(option, "release_agent=") {
			continue
		}
		if _, seen := h.controllers[option]; !seen {
			h.controllers[option] = m.Mountpoint
		}
		delete(wanted, option)
	}
}

// Has tells whether a controller (cpu, memory, pids, hugetlb, …) can be used.
func (h *Hierarchies) Has(controller string) bool {
	if h.Version == V2 {
		return slices.Contains(h.available, controller)
	}
	return h.controllers[controller] != ""
}

// Dir is the directory of a cgroup in a controller's hierarchy; on V2 it is the same for all. Empty: the controller
// is not mounted. The name of a v1 hierarchy without a controller is `name=systemd`.
func (h *Hierarchies) Dir(controller, cgroup string) string {
	root := h.Unified
	if h.Version == V1 {
		root = h.controllers[controller]
	}
	if root == "" {
		return ""
	}
	return path.Join(root, path.Join("/", cgroup)) // the inner Join keeps dots from leaving the hierarchy
}

// Dirs are all directories of a cgroup, each once, sorted. The v2 hierarchy beside v1 controllers is among them:
// runtimes put processes there too.
func (h *Hierarchies) Dirs(cgroup string) []string {
	if h.Version == V2 {
		return []string{h.Dir("", cgroup)}
	}
	var dirs []string
	for controller := range h.controllers {
		dirs = append(dirs, h.Dir(controller, cgroup))
	}
	if h.Unified != "" {
		dirs = append(dirs, path.Join(h.Unified, path.Join("/", cgroup)))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// Exists tells whether any hierarchy has the cgroup.
func (h *Hierarchies) Exists(cgroup string) bool {
	for _, dir := range h.Dirs(cgroup) {
		if _, err := os.Lstat(dir); err == nil {
			return true
		}
	}
	return false
}
