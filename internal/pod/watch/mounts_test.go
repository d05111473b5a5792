package watch

import (
	"os"
	"syscall"
	"testing"
)

// TestMountsChangeWhenOneComesOrGoes and not in between. The machine's own mounts may change at any time, so what does
// not change is asked until it has not.
func TestMountsChangeWhenOneComesOrGoes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	m, err := openMounts()
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	rest := func() {
		t.Helper()
		for range 100 {
			if !m.changed() {
				return
			}
		}
		t.Fatal("the mounts change without an end")
	}
	rest()
	dir := t.TempDir()
	if err := syscall.Mount("x", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	came := m.changed()
	rest()
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if gone := m.changed(); !came || !gone {
		t.Errorf("a mount came: %t; it went: %t", came, gone)
	}
	if !(*mounts)(nil).changed() {
		t.Error("what cannot be known is no change")
	}
}
