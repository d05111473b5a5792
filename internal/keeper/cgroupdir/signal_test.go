package cgroupdir

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/cgroup/nested"
)

// TestAProcessThatHasLeftTheCgroupIsNotKilled: between the look into a cgroup that forks all the time and the kill,
// processes end, and others of the node get their numbers. Here the list has the number of a process that is not there.
// Seen to fail with kill(2) by number, for Kill on cgroup v1 and for SignalAll.
func TestAProcessThatHasLeftTheCgroupIsNotKilled(t *testing.T) {
	cg := ofTest(t, "stale")
	group, err := NewManager(cg)
	if err != nil {
		t.Fatal(err)
	}
	if err := Make(group, cg.Resources); err != nil {
		t.Fatal(err)
	}
	paths := Recorded(group.GetPaths())
	dir := Members(paths)
	sleep := func() (*exec.Cmd, chan error) {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd, ended
	}
	other, alive := sleep()
	looks := 0
	processes = func(dir string) ([]int, error) {
		pids, err := nested.Processes(dir)
		if looks++; looks == 1 {
			pids = append([]int{other.Process.Pid}, pids...)
		}
		return pids, err
	}
	t.Cleanup(func() { processes = nested.Processes })
	for name, end := range map[string]func() error{
		"Kill":      func() error { return Kill(dir) },
		"SignalAll": func() error { return SignalAll(paths, unix.SIGTERM) },
	} {
		own, ended := sleep()
		below := filepath.Join(dir, "below")
		if err := os.Mkdir(below, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := WriteFile(filepath.Join(below, "cgroup.procs"), strconv.Itoa(own.Process.Pid)); err != nil {
			t.Fatal(err)
		}
		if pids, err := nested.Processes(dir); err != nil || !slices.Contains(pids, own.Process.Pid) {
			t.Fatal(pids, err)
		}
		looks = 0
		if err := end(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the process in the cgroup lives", name)
		}
		select {
		case err := <-alive:
			t.Errorf("%s: the process that is not in the cgroup has ended: %v", name, err)
			other, alive = sleep()
		case <-time.After(100 * time.Millisecond):
		}
		if !Remove(below) {
			t.Errorf("%s: the cgroup is left", name)
		}
	}
}
