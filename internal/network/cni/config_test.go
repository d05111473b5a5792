package cni

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"berth/internal/asroot"
)

const watchesTest = "BERTH_TEST_INOTIFY_WATCHES"

// The limit is that of a user namespace of the test's own, in which it runs itself again.
func TestADirectoryThatCannotBeWatchedIsReadEachTime(t *testing.T) {
	asroot.Need(t, "a user namespace")
	if os.Getenv(watchesTest) == "" {
		all := []syscall.SysProcIDMap{{Size: 1 << 16}}
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), watchesTest+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_inotify_watches", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{
		"there": t.TempDir(), "not there": filepath.Join(t.TempDir(), "below/net.d"),
	} {
		f := follow(dir)
		f.changed()
		if !f.changed() {
			t.Errorf("a directory that is %s is taken for unchanged", name)
		}
		f.close()
	}
}
