package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// keptControllers are the v1 hierarchies that the keeper itself looks into.
var keptControllers = []string{"freezer", "memory", "pids", "devices", "systemd"}

// keepPaths picks what a row needs of a container's cgroup paths.
func keepPaths(paths map[string]string) map[string]string {
	m := map[string]string{}
	// With v1 hierarchies there may be an empty v2 one beside them, which libcontainer also calls "".
	if cgroups.IsCgroup2UnifiedMode() {
		m[""] = paths[""]
		return m
	}
	for _, k := range keptControllers {
		if p := paths[k]; p != "" {
			m[k] = p
		}
	}
	return m
}

// processPaths are the directories of the cgroups that a process is in.
func processPaths(pid int) (map[string]string, error) {
	rel, err := cgroups.ParseCgroupFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	if cgroups.IsCgroup2UnifiedMode() {
		paths[""] = filepath.Join(cgroupRoot, rel[""])
		return paths, nil
	}
	for _, k := range keptControllers {
		name := k
		if k == "systemd" {
			name = "name=systemd"
		}
		p, ok := rel[name]
		if !ok {
			continue
		}
		if mnt, err := cgroups.FindCgroupMountpoint("", name); err == nil {
			paths[k] = filepath.Join(mnt, p)
		}
	}
	return paths, nil
}

// members is the directory whose processes are the container's: the freezer's, else any. It is empty where the
// container has none of its own, which a root of a hierarchy never is.
func members(paths map[string]string) string {
	for _, k := range append([]string{""}, keptControllers...) {
		rel, ok := strings.CutPrefix(paths[k], cgroupRoot+"/")
		if ok && rel != "" && (k == "" || strings.Contains(rel, "/")) {
			return paths[k]
		}
	}
	return ""
}

// killRounds bounds killing in a cgroup that forks meanwhile.
const killRounds = 100

// killAll ends every process in the container's cgroup and below it.
func killAll(paths map[string]string) error {
	dir := members(paths)
	if dir == "" {
		return nil
	}
	return killCgroup(dir)
}

func killCgroup(dir string) error {
	if pids, err := cgroups.GetAllPids(dir); err == nil {
		if len(pids) == 0 {
			return nil
		}
		if slices.Contains(pids, os.Getpid()) {
			return fmt.Errorf("cgroup %s is the keeper's own", dir)
		}
	}
	// cgroup.kill (Linux 5.14, v2 only) takes all at once, forks included.
	if err := writeFile(filepath.Join(dir, "cgroup.kill"), "1"); err == nil || errors.Is(err, unix.ENODEV) {
		return nil
	}
	for round := range killRounds {
		pids, err := cgroups.GetAllPids(dir)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || err == nil && len(pids) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if round > 2 {
			freeze(dir, true) // it forks faster than it is killed
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		freeze(dir, false)
		time.Sleep(time.Duration(min(round, 20)) * time.Millisecond)
	}
	return fmt.Errorf("processes in %s do not end", dir)
}

// freeze freezes or thaws, where the directory is one of a hierarchy that can. Thawing what is not frozen costs nothing.
func freeze(dir string, on bool) {
	v1, v2 := "THAWED", "0"
	if on {
		v1, v2 = "FROZEN", "1"
	} else if b, err := os.ReadFile(filepath.Join(dir, "freezer.state")); err == nil && strings.TrimSpace(string(b)) == v1 {
		return
	}
	if err := writeFile(filepath.Join(dir, "freezer.state"), v1); err != nil {
		_ = writeFile(filepath.Join(dir, "cgroup.freeze"), v2)
	}
}

// thaw lets a killed container die: on v1 a frozen process does not.
func thaw(paths map[string]string) {
	if p := paths["freezer"]; p != "" {
		freeze(p, false)
	}
}

// frozen says whether the container is paused.
func frozen(paths map[string]string) bool {
	if p, ok := paths[""]; ok {
		b, err := os.ReadFile(filepath.Join(p, "cgroup.freeze"))
		return err == nil && strings.TrimSpace(string(b)) == "1"
	}
	b, err := os.ReadFile(filepath.Join(paths["freezer"], "freezer.state"))
	return paths["freezer"] != "" && err == nil && strings.TrimSpace(string(b)) != "THAWED"
}

// writeFile writes to a file of a cgroup and does not make one.
func writeFile(path, data string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(data))
	return err
}

// subCgroup makes a cgroup for one exec in the container's, in the one hierarchy that is needed to find its processes.
// It returns the directory and what libcontainer is to be told; an empty directory where none can be made.
func subCgroup(paths map[string]string, name string) (dir string, sub map[string]string) {
	controller := "freezer"
	base := paths[controller]
	if p, ok := paths[""]; ok {
		controller, base = "", p
	}
	if base == "" {
		return "", nil
	}
	dir = filepath.Join(base, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", nil
	}
	return dir, map[string]string{controller: name}
}

// removeCgroup removes an exec's cgroup. One that still has processes goes with the container.
func removeCgroup(dir string) {
	for i := range 5 {
		if err := unix.Rmdir(dir); err != unix.EBUSY {
			return
		}
		if pids, err := cgroups.GetAllPids(dir); err != nil || len(pids) > 0 {
			return
		}
		time.Sleep(time.Duration(i) * time.Millisecond) // the kernel is still busy with the last one
	}
}
