package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/asroot"
)

// TestTheProbeOfMappedOwnersFollowsTheFileSystem: ext4 and tmpfs can map owners, and ramfs cannot. Nothing is left of
// the probe, or of one that was killed.
func TestTheProbeOfMappedOwnersFollowsTheFileSystem(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	ram := t.TempDir()
	if err := unix.Mount("ramfs", ram, "ramfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(ram, unix.MNT_DETACH) })
	mounts := func(root string) int {
		all, err := Mounts(root)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	for name, c := range map[string]struct {
		root string
		want error
	}{
		"the file system of tests": {t.TempDir(), nil},
		"ramfs":                    {ram, ErrOwnersNotMapped},
	} {
		dir, before := filepath.Join(c.root, "probe"), mounts(c.root)
		for range 2 { // the second one finds what a killed one has left
			begin := time.Now()
			if err := ProbeOwners(t.Context(), dir); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			t.Logf("%s: %v", name, time.Since(begin))
			if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: the directory is left: %v", name, err)
			}
			if after := mounts(c.root); after != before {
				t.Errorf("%s: there are %d mounts, and were %d", name, after, before)
			}
			if err := os.MkdirAll(filepath.Join(dir, mappedDir, "0"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(dir, filepath.Join(dir, mappedDir, "0"), "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
		}
		if err := Remove(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
}
