package cgroupdir

import (
	"bytes"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"
)

// A start on cgroup v1 makes a dozen directories, some of them with their parents. libcontainer looks for each
// hierarchy, and for the processors of all parents, at each start, which takes as much time as the directories.

// roots are the directories of the v1 hierarchies by controller, as libcontainer finds them; nil on cgroup v2. They are
// looked for once: nobody mounts a hierarchy of v1 while containers run.
var roots = sync.OnceValue(func() map[string]string {
	if cgroups.IsCgroup2UnifiedMode() {
		return nil
	}
	const probe = "/berth-hierarchies" // is not made
	m, err := manager.New(&cgroups.Cgroup{Path: probe, Resources: &cgroups.Resources{}})
	if err != nil {
		return nil // the same error is that of each container
	}
	found := map[string]string{}
	for controller, dir := range m.GetPaths() {
		root, ok := strings.CutSuffix(dir, probe)
		if !ok {
			return nil
		}
		found[controller] = root
	}
	return found
})

// Find looks for the hierarchies now, so that no container waits for that.
func Find() {
	roots()
	_, _ = cgroups.GetCgroupMounts(true) // OfProcess has them from libcontainer, which keeps them
}

// NewManager returns the manager of a container's cgroup, as libcontainer's manager.New.
func NewManager(cg *cgroups.Cgroup) (cgroups.Manager, error) {
	known := roots()
	if known == nil || cg.Systemd || cg.Name != "" || cg.Parent != "" || !filepath.IsAbs(cg.Path) ||
		filepath.Clean(cg.Path) != cg.Path || cg.Path == "/" {
		return manager.New(cg)
	}
	paths := make(map[string]string, len(known))
	for controller, root := range known {
		paths[controller] = root + cg.Path
	}
	return manager.NewWithPaths(cg, paths)
}

// Make makes the cgroup of a manager, and its parents, as group.Apply(-1) does. That is left to libcontainer on cgroup
// v2, and on v1 where a parent lacks processors (see cgroup.Claim for those that have them from the start), the
// container has settings that libcontainer makes meanwhile, or anything fails.
func Make(group cgroups.Manager, r *cgroups.Resources) error {
	if roots() == nil || !makeDirs(group.GetPaths(), r) {
		return group.Apply(-1)
	}
	return nil
}

// makeDirs makes the directories of a cgroup and says whether that is all that there is to do.
func makeDirs(paths map[string]string, r *cgroups.Resources) bool {
	if r.SkipDevices || r.CpusetCpus != "" || r.CpusetMems != "" || r.CpuRtPeriod != 0 || r.CpuRtRuntime != 0 {
		return false
	}
	if dir := paths["cpuset"]; dir != "" {
		if makeDir(dir) != nil || !filled(filepath.Join(dir, "cpuset.cpus")) || !filled(filepath.Join(dir, "cpuset.mems")) {
			return false
		}
	}
	for controller, dir := range paths {
		if controller != "cpuset" && makeDir(dir) != nil {
			return false
		}
	}
	return true
}

// makeDir is os.MkdirAll for a directory whose parent is mostly there: it looks for nothing first.
func makeDir(dir string) error {
	err := unix.Mkdir(dir, 0o755)
	if err == unix.ENOENT && filepath.Dir(dir) != cgroupRoot {
		if err = makeDir(filepath.Dir(dir)); err == nil {
			err = unix.Mkdir(dir, 0o755)
		}
	}
	if err == unix.EEXIST {
		return nil
	}
	return err
}

// filled says whether a file of a cpuset names a processor or memory node.
func filled(file string) bool {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var text [64]byte // a part of a long list is enough
	n, err := unix.Read(fd, text[:])
	return err == nil && len(bytes.TrimSpace(text[:n])) > 0
}
