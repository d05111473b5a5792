package life

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// join moves a process into a cgroup.
func join(cgroup string, pid int) error {
	return os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// TestACgroupThatIsInUseGoesLater: somebody else's process in it holds up its removal, not the pod's, and leaves
// nothing.
func TestACgroupThatIsInUseGoesLater(t *testing.T) {
	nodetest.BerthOnly(t, "its cgroups are named otherwise")
	n := nodetest.Start(t, node.Options{})
	roots, err := node.CgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = "" })
	p.Run()
	own := n.OwnCgroup(n.CgroupRoot, p.ID)
	stranger := exec.Command("sleep", "3600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})
	t.Cleanup(end)
	joined := false
	for _, root := range roots {
		dir := filepath.Join(root, own)
		if err = join(dir, stranger.Process.Pid); errors.Is(err, syscall.EBUSY) { // version 2: only leaves have processes
			dir = filepath.Join(dir, "stranger")
			if err = os.Mkdir(dir, 0o755); err == nil {
				err = join(dir, stranger.Process.Pid)
			}
		}
		joined = joined || err == nil
	}
	if !joined {
		t.Fatalf("no process may join the pod's cgroup %s: %v", own, err)
	}
	p.Remove()
	there := func() (dirs []string) {
		for _, root := range roots {
			if _, err := os.Stat(filepath.Join(root, own)); err == nil {
				dirs = append(dirs, filepath.Join(root, own))
			}
		}
		return dirs
	}
	if len(there()) == 0 {
		t.Error("a cgroup with a process in it is gone")
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("somebody else's process: %v", err)
	}
	end()
	nodetest.Eventually(t, 30*time.Second, "the pod's cgroup is gone", func() error {
		if dirs := there(); len(dirs) > 0 {
			return fmt.Errorf("%v", dirs)
		}
		return nil
	})
}
