// Package poddirtest makes data directories for tests.
package poddirtest

import (
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Root is a data directory that is removed after the test, with what is mounted in it.
func Root(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() {
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
		if err != nil {
			t.Error(err)
		}
		for i := len(mounts) - 1; i >= 0; i-- {
			if err := unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", mounts[i].Mountpoint, err)
			}
		}
	})
	return root
}
