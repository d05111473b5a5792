// Package quotatest makes file systems for tests: with project quotas, and such as hang.
package quotatest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount makes a file system, ext4 or xfs, of half a GiB in a file and mounts it with options, and returns where.
// It ends with the test, which is skipped where this machine cannot mount it so: not every kernel has quotas.
func Mount(t testing.TB, kind, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("to mount a file system needs root")
	}
	dir := t.TempDir()
	file, at := filepath.Join(dir, "file"), filepath.Join(dir, "at")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 512<<20); err != nil {
		t.Fatal(err)
	}
	make := []string{"mkfs." + kind, "-q", file}
	if kind == "ext4" {
		make = []string{"mkfs.ext4", "-q", "-E", "lazy_itable_init=1,nodiscard", file}
		if strings.Contains(options, "prjquota") {
			make = []string{"mkfs.ext4",
				"-q", "-O", "quota,project", "-E", "quotatype=prjquota,lazy_itable_init=1,nodiscard", file}
		}
	}
	if _, err := exec.LookPath(make[0]); err != nil {
		t.Skipf("%s is not on this machine", make[0])
	}
	run(t, make...)
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", kind, "-o", "loop,"+options, file, at).CombinedOutput(); err != nil {
		t.Skipf("this kernel mounts no %s with %s: %s", kind, options, strings.TrimSpace(string(out)))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("unmount %s: %v", at, err)
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	})
	return at
}

// Freeze has the file system that is mounted at a directory answer no write, as a disk that hangs, until thaw is called
// or the test ends.
func Freeze(t testing.TB, at string) (thaw func()) {
	t.Helper()
	const fifreeze, fithaw = 0xc0045877, 0xc0045878 // of linux/fs.h
	top, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(top.Fd()), fifreeze, 0); err != nil {
		top.Close()
		t.Fatal(err)
	}
	thaw = sync.OnceFunc(func() {
		defer top.Close()
		if err := unix.IoctlSetInt(int(top.Fd()), fithaw, 0); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(thaw)
	return thaw
}

func run(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}
