package cgroupdir

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"

	"berth/internal/asroot"
	"berth/internal/cgroup/nested"
)

// ofTest is the configuration of a cgroup two levels below one of the test's own, which is removed with the test.
func ofTest(t *testing.T, name string) *cgroups.Cgroup {
	t.Helper()
	asroot.Need(t, "cgroups")
	top := fmt.Sprintf("/berth-test-%d", os.Getpid())
	for _, path := range []string{top, top + "/pod", top + "/pod/" + name} {
		m, err := manager.New(&cgroups.Cgroup{Path: path, Resources: &cgroups.Resources{}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Destroy(); err != nil {
				t.Error(err)
			}
		})
	}
	return &cgroups.Cgroup{Path: top + "/pod/" + name, Resources: &cgroups.Resources{}}
}

// TestACgroupIsMadeAsByLibcontainer: the same directories, with processors, and where nobody gives a parent any. It was
// seen to fail without the look into the files of the cpuset, on cgroup v1.
func TestACgroupIsMadeAsByLibcontainer(t *testing.T) {
	for _, name := range []string{"first", "second"} { // of the second the parents are there
		cg := ofTest(t, name)
		theirs, err := manager.New(cg)
		if err != nil {
			t.Fatal(err)
		}
		group, err := NewManager(cg)
		if err != nil {
			t.Fatal(err)
		}
		want := theirs.GetPaths()
		for controller, dir := range group.GetPaths() {
			if dir == "" || want[controller] != dir {
				t.Errorf("%q: the directory is %q, and %q by libcontainer", controller, dir, want[controller])
			}
			delete(want, controller)
		}
		if len(want) > 0 {
			t.Errorf("directories are missing: %v", want)
		}
		if err := Make(group, cg.Resources); err != nil {
			t.Fatal(err)
		}
		for controller, dir := range group.GetPaths() {
			if _, err := os.Stat(dir); err != nil {
				t.Errorf("%q: %v", controller, err)
			}
		}
		if dir := group.Path("cpuset"); dir != "" && !cgroups.IsCgroup2UnifiedMode() {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if !filled(filepath.Join(dir, file)) {
					t.Errorf("%s names nothing, so no process can join", file)
				}
			}
		}
		if err := group.Destroy(); err != nil {
			t.Error(err)
		}
	}
}

// TestProcessesBelowACgroupAreFound: in the cgroup itself, and in one that is in it, as containers with cgroups of
// their own have.
func TestProcessesBelowACgroupAreFound(t *testing.T) {
	cg := ofTest(t, "outer")
	inner := ofTest(t, "outer/inner")
	var dirs []string
	for _, c := range []*cgroups.Cgroup{cg, inner} {
		group, err := NewManager(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := Make(group, c.Resources); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, Members(Recorded(group.GetPaths())))
	}
	sleep := exec.Command("sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	for _, dir := range []string{dirs[1], dirs[0]} {
		if pids, err := nested.Processes(dirs[0]); err != nil || len(pids) > 0 && dir == dirs[1] {
			t.Errorf("before a process is there: %v, %v", pids, err)
		}
		if err := cgroups.WriteCgroupProc(dir, sleep.Process.Pid); err != nil {
			if cgroups.IsCgroup2UnifiedMode() && dir == dirs[0] {
				break // only leaves have processes there
			}
			t.Fatal(err)
		}
		if pids, err := nested.Processes(dirs[0]); err != nil || !slices.Equal(pids, []int{sleep.Process.Pid}) {
			t.Errorf("a process in %s: %v, %v", dir, pids, err)
		}
	}
}
