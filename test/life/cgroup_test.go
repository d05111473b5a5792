package life

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// cgroups are a container's directories in all hierarchies.
func cgroups(t testing.TB, c *nodetest.Container) []string {
	t.Helper()
	hierarchies, err := node.CgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, hierarchy := range hierarchies {
		top := filepath.Join(hierarchy, c.Pod.Node.CgroupRoot)
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() && strings.Contains(entry.Name(), c.ID) {
				// With systemd's driver crun has processes and limits one below its scope.
				if below := filepath.Join(path, "container"); exists(below) {
					path = below
				}
				found = append(found, path)
				return fs.SkipDir
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// cgroupFile reads a container's cgroup file, by its name in v1 (controller/file) or in v2.
func cgroupFile(t testing.TB, c *nodetest.Container, v1, v2 string) string {
	t.Helper()
	for _, dir := range cgroups(t, c) {
		for _, file := range []string{filepath.Base(v1), v2} {
			data, err := os.ReadFile(filepath.Join(dir, file))
			if err == nil {
				return strings.TrimSpace(string(data))
			}
		}
	}
	t.Fatalf("container %s has neither %s nor %s: its cgroups are %v", c.ID, v1, v2, cgroups(t, c))
	return ""
}

// hostPID is a process of a container, as this machine numbers it.
func hostPID(t testing.TB, c *nodetest.Container) int {
	t.Helper()
	pid, err := c.Pod.Node.ContainerPID(c.ID)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
