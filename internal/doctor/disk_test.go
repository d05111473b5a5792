package doctor

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestADiskThatTakesNoWrites(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, "size=1g"); err != nil {
		t.Skipf("to mount a file system needs root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	cfg := Config{Root: dir, State: dir}
	for name, f := range map[string]Finding{
		"root": checkDisk(t.Context(), cfg), "state": checkStateDisk(t.Context(), cfg),
	} {
		if f.Level != Bad || !strings.Contains(f.Detail, "takes no writes: read-only file system") {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	if f := checkDisk(t.Context(), cfg); f.Level != Good {
		t.Errorf("one that takes them: %+v", f)
	}
}

func TestImagesThatAreNotOnDisk(t *testing.T) {
	for _, c := range []struct {
		unsynced *Unsynced
		level    Level
		detail   string
	}{
		{nil, Good, "not checked"},
		{&Unsynced{}, Good, "all layers"},
		{&Unsynced{Synced: time.Now().Add(-time.Hour)}, Good, "all layers of images are on disk, last synced 1h0m0s ago"},
		{&Unsynced{Layers: 2, Since: time.Now()}, Good, "2 layers of images are not known to be on disk: a sync"},
		{&Unsynced{Layers: 2, Failure: "input/output error", Synced: time.Now().Add(-time.Hour)}, Poor,
			"on disk, last synced 1h0m0s ago: input/output error"},
		{&Unsynced{Layers: 2, Since: time.Now().Add(-time.Hour)}, Poor, "a sync was asked for 1h0m0s ago"},
		{&Unsynced{Layers: 2, Failure: "input/output error"}, Poor, "on disk: input/output error"},
	} {
		f := checkSync(t.Context(), Config{Daemon: &Daemon{Unsynced: c.unsynced}})
		if f.Level != c.level || !strings.Contains(f.Detail, c.detail) {
			t.Errorf("%+v: %+v", c.unsynced, f)
		}
	}
}
