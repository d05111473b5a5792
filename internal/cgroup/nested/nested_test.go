package nested_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/cgroup"
	"berth/internal/cgroup/nested"
)

// TestCgroupsOfAnyDepthAreSeenAndRemoved: the path of the lowest one is longer than a path can be.
func TestCgroupsOfAnyDepthAreSeenAndRemoved(t *testing.T) {
	asroot.Need(t, "cgroups")
	host, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	dir := host.Dir("freezer", fmt.Sprintf("/berth-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	remove := func() error { return errors.Join(nested.Remove(t.Context(), dir), unix.Rmdir(dir)) }
	t.Cleanup(func() {
		if _, err := os.Stat(dir); err == nil {
			t.Error(errors.Join(nested.Remove(context.Background(), dir), unix.Rmdir(dir)))
		}
	})
	if pids, err := nested.Processes(dir); err != nil || len(pids) > 0 {
		t.Errorf("one with nothing in it has %v, %v", pids, err)
	}
	sleep := exec.Command("sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }
	defer end()
	at, err := os.Open(dir)
	for i := 0; err == nil && i < unix.PathMax/2; i++ {
		var fd int
		for _, name := range []string{"side", "d"} {
			err = errors.Join(err, unix.Mkdirat(int(at.Fd()), name, 0o755))
		}
		if err == nil {
			fd, err = unix.Openat(int(at.Fd()), "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		at.Close()
		at = os.NewFile(uintptr(fd), "d")
	}
	if err != nil {
		t.Fatal(err)
	}
	procs, err := unix.Openat(int(at.Fd()), "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	at.Close()
	if err == nil {
		_, err = unix.Write(procs, []byte(strconv.Itoa(sleep.Process.Pid)))
		unix.Close(procs)
	}
	if err != nil {
		t.Fatal(err)
	}
	if pids, err := nested.Processes(dir); err != nil || !slices.Equal(pids, []int{sleep.Process.Pid}) {
		t.Errorf("the process in the lowest one: %v, %v", pids, err)
	}
	if err := nested.Remove(t.Context(), dir); !errors.Is(err, unix.EBUSY) {
		t.Errorf("with a process in it: %v", err)
	}
	end()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err = remove(); !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			break // the kernel is busy with the process for a moment
		}
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := nested.Processes(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("once it is gone: %v", err)
	}
	if err := nested.Remove(t.Context(), dir); err != nil {
		t.Errorf("once it is gone: %v", err)
	}
}
