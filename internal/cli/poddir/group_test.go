package poddir

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAVolumeOfTheDaemonIsGivenToTheGroup: what a kubelet does to the volume of a claim. What stands outside of it
// stays, whatever links in the volume lead there. Seen to fail without the mode, without the links' own group, without
// the policy, with a policy that looks at the group alone, and with a file's own setuid bit lost.
func TestAVolumeOfTheDaemonIsGivenToTheGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a change of the group needs root")
	}
	outside, volume := t.TempDir(), filepath.Join(t.TempDir(), "data")
	at := func(name string) string { return filepath.Join(volume, name) }
	for _, dir := range []struct {
		path string
		mode uint32
	}{{outside + "/dir", 0o700}, {volume, 0o755}, {at("dir"), 0o700}, {at("dir/deep"), 0o1711}} {
		if err := unix.Mkdir(dir.path, 0); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(dir.path, dir.mode); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]uint32{
		outside + "/file": 0o600, at("dir/deep/file"): 0o604, at("tool"): 0o4755, at("none"): 0} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"evil": outside + "/file", "dir/evil": outside + "/dir", "gone": "/none"} {
		if err := os.Symlink(to, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(path string, mode, group uint32) {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		if mode != 0 && st.Mode&0o7777 != mode || st.Gid != group {
			t.Errorf("%s has mode %o and group %d, not %o and %d", path, st.Mode&0o7777, st.Gid, mode, group)
		}
	}
	all := func() {
		t.Helper()
		for name, mode := range map[string]uint32{".": 0o2775, "dir": 0o2770, "dir/deep": 0o3771, "dir/deep/file": 0o664,
			"tool": 0o4775, "none": 0o660, "pipe": 0o660, "evil": 0, "dir/evil": 0, "gone": 0} {
			check(at(name), mode, 1234)
		}
		check(outside+"/file", 0o600, 0)
		check(outside+"/dir", 0o700, 0)
	}
	lax := Group{ID: 1234, OnRootMismatch: true}
	if err := lax.Give(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	all()
	if err := os.Chown(at("tool"), 0, 7); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at("tool"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := lax.Give(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	check(at("tool"), 0o4755, 7) // the root is the group's
	if err := (Group{ID: 1234}).Give(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	all()
	if err := os.Chmod(volume, 0o775); err != nil { // without the bit for what is made later
		t.Fatal(err)
	}
	if err := os.Lchown(at("gone"), 0, 7); err != nil {
		t.Fatal(err)
	}
	if err := lax.Give(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	all()
	if err := os.Symlink(volume, at("../link")); err != nil {
		t.Fatal(err)
	}
	if err := lax.Give(t.Context(), at("../link")); err == nil {
		t.Error("a link was taken for a volume")
	}
}
