package mountns

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRestrictionsOfAMount(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID_UNIQUE, &st); err != nil {
		t.Fatal(err)
	}
	if st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		t.Skip("this kernel has no unique IDs of mounts (before Linux 6.8)")
	}
	want := []string{"ro", "nodev", "noexec"}
	if got, err := Restrictions(st.Mnt_id); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := Restrictions(st.Mnt_id); err != nil || !slices.Equal(got, []string{"nosuid"}) {
		t.Errorf("%q, %v, want nosuid", got, err)
	}
	if got, err := Restrictions(1); err == nil {
		t.Errorf("of a mount that is not there: %q", got)
	}
}
