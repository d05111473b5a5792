package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/model"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// layers makes n layers, the top one first. Each has a file of its own, and all have "shared", which says whose it is.
func layers(t testing.TB, n int) []string {
	t.Helper()
	root := t.TempDir()
	dirs := make([]string, n)
	for i := range n {
		dirs[i] = filepath.Join(root, fmt.Sprintf("sha256:%064d", i), "a, long\\name:with=odd signs")
		must(t, os.MkdirAll(dirs[i], 0o755))
		must(t, os.WriteFile(filepath.Join(dirs[i], fmt.Sprintf("layer%d", i)), []byte("x"), 0o644))
		must(t, os.WriteFile(filepath.Join(dirs[i], "shared"), []byte(fmt.Sprint(i)), 0o644))
	}
	return dirs
}

func mount(t testing.TB, o Options) string {
	t.Helper()
	path, err := Mount(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { must(t, Remove(context.Background(), o.Dir)) })
	return path
}

func TestLayersAreStackedAndWritesStayApart(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	for _, n := range []int{0, 1, 2, 60, 200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			lowers := layers(t, n)
			dir := filepath.Join(t.TempDir(), "ctr")
			path := mount(t, Options{Dir: dir, Lowers: lowers, Durable: n%2 == 0})
			if path != Path(dir) {
				t.Errorf("mounted at %s, want %s", path, Path(dir))
			}
			if n > 0 {
				got, err := os.ReadFile(filepath.Join(path, "shared"))
				must(t, err)
				if string(got) != "0" {
					t.Errorf("the file of layer %s is on top", got)
				}
			}
			for i := range n {
				if _, err := os.Stat(filepath.Join(path, fmt.Sprintf("layer%d", i))); err != nil {
					t.Error(err)
				}
			}
			must(t, os.WriteFile(filepath.Join(path, "written"), []byte("y"), 0o600))
			if n > 0 {
				must(t, os.Remove(filepath.Join(path, "shared")))
				if _, err := os.Stat(filepath.Join(lowers[0], "shared")); err != nil {
					t.Error("a layer was written to: ", err)
				}
			}
			if _, err := os.Stat(filepath.Join(Upper(dir), "written")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOldKernelsMountThroughOptions(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	base := t.TempDir()
	for _, n := range []int{1, 60, 150} {
		o := Options{Dir: filepath.Join(base, fmt.Sprint(n)), Lowers: layers(t, n)}
		must(t, o.makeDirs())
		t.Cleanup(func() { must(t, Remove(context.Background(), o.Dir)) })
		must(t, o.mountByOptions(o.Lowers, Path(o.Dir)))
		if got, err := os.ReadFile(filepath.Join(Path(o.Dir), "shared")); err != nil || string(got) != "0" {
			t.Errorf("%d layers: %q, %v", n, got, err)
		}
		if _, err := os.Stat(filepath.Join(Path(o.Dir), fmt.Sprintf("layer%d", n-1))); err != nil {
			t.Errorf("%d layers: %v", n, err)
		}
	}
	o := Options{Dir: filepath.Join(base, "many"), Lowers: layers(t, 300)}
	must(t, o.makeDirs())
	if err := o.mountByOptions(o.Lowers, Path(o.Dir)); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("300 layers: %v", err)
	}
}

func TestTheRootHasTheImagesModeAndTheMountIsPrivate(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	shared := t.TempDir()
	must(t, unix.Mount("test", shared, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(shared, unix.MNT_DETACH)) })
	must(t, unix.Mount("", shared, "", unix.MS_SHARED, ""))
	lowers := layers(t, 1)
	must(t, os.Chmod(lowers[0], 0o751|os.ModeSticky))
	must(t, os.Chown(lowers[0], 3, 4))
	path := mount(t, Options{Dir: filepath.Join(shared, "ctr"), Lowers: lowers})
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	if st.Mode&0o7777 != 0o1751 || st.Uid != 3 || st.Gid != 4 {
		t.Errorf("mode %o of %d:%d", st.Mode&0o7777, st.Uid, st.Gid)
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.SplitSeq(string(info), "\n") {
		if strings.Contains(line, " "+path+" ") && strings.Contains(line, "shared:") {
			t.Error("the mount is shared: ", line)
		}
	}
}

// TestPathsMayBeLong: fsconfig(2) takes values of 255 bytes at most.
func TestPathsMayBeLong(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	long := filepath.Join(t.TempDir(), strings.Repeat("a", 127), strings.Repeat("b", 127))
	lowers := make([]string, 300)
	for i := range lowers {
		lowers[i] = filepath.Join(long, fmt.Sprint(i))
		must(t, os.MkdirAll(lowers[i], 0o755))
	}
	must(t, os.WriteFile(filepath.Join(lowers[299], "f"), []byte("x"), 0o644))
	for name, o := range map[string]Options{"one layer": {Lowers: lowers[299:]}, "many layers": {Lowers: lowers},
		"only to read": {Lowers: lowers, Readonly: true},
		"with owners mapped": {Lowers: lowers[298:], UIDs: []model.IDMapping{{HostID: 100000, Length: 1000}},
			GIDs: []model.IDMapping{{HostID: 100000, Length: 1000}}}} {
		t.Run(name, func(t *testing.T) {
			o.Dir = filepath.Join(long, strings.ReplaceAll(name, " ", "-"))
			path := mount(t, o)
			if _, err := os.Stat(filepath.Join(path, "f")); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(filepath.Join(path, "w"), nil, 0o600); err != nil && !o.Readonly {
				t.Error(err)
			}
		})
	}
}

func TestAReadOnlyRootTakesNoWrites(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	for _, n := range []int{0, 1, 3} {
		dir := filepath.Join(t.TempDir(), "ctr")
		path := mount(t, Options{Dir: dir, Lowers: layers(t, n), Readonly: true})
		if err := os.WriteFile(filepath.Join(path, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("%d layers: %v", n, err)
		}
		if _, err := os.Stat(Upper(dir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a writable layer is there: %v", err)
		}
	}
}

// TestARootThatWasChangedKeepsItsLook: a restored container may have changed it, and a created one is mounted again
// after a reboot.
func TestARootThatWasChangedKeepsItsLook(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	o := Options{Dir: filepath.Join(t.TempDir(), "ctr"), Lowers: layers(t, 1)}
	path := mount(t, o)
	must(t, Unmount(o.Dir, path))
	must(t, os.Chown(Upper(o.Dir), 3, 4))
	must(t, os.Chmod(Upper(o.Dir), 0o711))
	var st unix.Stat_t
	must(t, unix.Stat(mount(t, o), &st))
	if st.Mode&0o7777 != 0o711 || st.Uid != 3 || st.Gid != 4 {
		t.Errorf("mode %o of %d:%d", st.Mode&0o7777, st.Uid, st.Gid)
	}
}

func TestOwnersAreMappedIntoAUserNamespace(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	lowers := layers(t, 3)
	must(t, os.Chown(filepath.Join(lowers[2], "layer2"), 7, 8))
	mapping := []model.IDMapping{{HostID: 300000, Length: 65536}}
	dir := filepath.Join(t.TempDir(), "ctr")
	path := mount(t, Options{Dir: dir, Lowers: lowers, UIDs: mapping, GIDs: mapping})
	for name, want := range map[string]uint32{"": 300000, "shared": 300000, "layer2": 300007} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(path, name), &st))
		if st.Uid != want {
			t.Errorf("%q belongs to %d, want %d", name, st.Uid, want)
		}
	}
	must(t, os.WriteFile(filepath.Join(path, "shared"), []byte("copied up"), 0o644))
	left, err := Mounts(dir)
	must(t, err)
	if !slices.Equal(left, []string{path}) {
		t.Errorf("mounts %v, want only %s", left, path)
	}
	if _, err := Mount(t.Context(), Options{Dir: dir, UIDs: mapping}); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("users mapped and groups not: %v", err)
	}
}

func TestMountReplacesWhatACrashLeft(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	o := Options{Dir: filepath.Join(t.TempDir(), "ctr"), Lowers: layers(t, 2)}
	mount(t, o)
	path, err := Mount(t.Context(), o)
	must(t, err)
	got, err := Mounts(o.Dir)
	must(t, err)
	if !slices.Equal(got, []string{path}) {
		t.Errorf("mounts %v, want one", got)
	}
	must(t, Unmount(o.Dir))
	must(t, Unmount(o.Dir))
	if got, _ := Mounts(o.Dir); len(got) != 0 {
		t.Errorf("mounts %v after Unmount", got)
	}
	if err := Unmount(filepath.Join(o.Dir, "never")); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}

func TestABusyMountGoesAway(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	dir := filepath.Join(t.TempDir(), "ctr")
	path := mount(t, Options{Dir: dir, Lowers: layers(t, 1)})
	f, err := os.Create(filepath.Join(path, "open"))
	must(t, err)
	defer f.Close()
	must(t, Remove(t.Context(), dir))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is there: %v", err)
	}
}

func TestMountSaysWhichLayerIsWrong(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	dir := filepath.Join(t.TempDir(), "ctr")
	lowers := append(layers(t, 2), "/no/such/layer")
	_, err := Mount(t.Context(), Options{Dir: dir, Lowers: lowers})
	if err == nil || !strings.Contains(err.Error(), "/no/such/layer") {
		t.Errorf("error %v", err)
	}
	if got, _ := Mounts(dir); len(got) != 0 {
		t.Errorf("mounts %v after a failure", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Mount(ctx, Options{Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
}

func TestRemoveCopesWithWhatContainersLeave(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	dir := filepath.Join(t.TempDir(), "ctr")
	must(t, os.MkdirAll(filepath.Join(dir, "wide"), 0o755))
	for i := range 1500 {
		must(t, os.WriteFile(filepath.Join(dir, "wide", fmt.Sprint(i)), nil, 0o600))
	}
	// 3000 levels are beyond any path and any limit of open files.
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 3000 {
		must(t, unix.Mkdirat(at, "deep", 0o700))
		next, err := unix.Openat(at, "deep", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(at)
		at = next
	}
	must(t, unix.Mknodat(at, "pipe", unix.S_IFIFO|0o600, 0))
	unix.Close(at)
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.MkdirAll(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "file"), []byte("x"), 0o600))
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	must(t, os.MkdirAll(filepath.Join(dir, "marked"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "marked", "immutable"), nil, 0o600))
	if out, err := exec.Command("chattr", "+i", filepath.Join(dir, "marked", "immutable"),
		filepath.Join(dir, "marked")).CombinedOutput(); err != nil {
		t.Logf("immutable files are not tried here: %v %s", err, out)
	}
	if _, _, err := Usage(t.Context(), dir); err != nil {
		t.Error(err)
	}
	must(t, Remove(t.Context(), dir))
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Error("a link was followed: ", err)
	}
	must(t, Remove(t.Context(), dir))
}

func TestRemoveNeverCrossesAMount(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	dir := filepath.Join(t.TempDir(), "ctr")
	foreign := t.TempDir()
	must(t, os.WriteFile(filepath.Join(foreign, "precious"), nil, 0o600))
	target := filepath.Join(dir, "some", "where")
	must(t, os.MkdirAll(target, 0o755))
	must(t, unix.Mount(foreign, target, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(target, unix.MNT_DETACH)) })
	if err := Remove(t.Context(), dir); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "mounted") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(foreign, "precious")); err != nil {
		t.Error("what was mounted was removed: ", err)
	}
	for _, bad := range []string{"/", "relative", ""} {
		if err := Remove(t.Context(), bad); err == nil {
			t.Errorf("%q was removed", bad)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	many := filepath.Join(t.TempDir(), "many")
	must(t, os.MkdirAll(many, 0o755))
	for i := range 200 {
		must(t, os.WriteFile(filepath.Join(many, fmt.Sprint(i)), nil, 0o600))
	}
	if err := Remove(ctx, many); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
}

// TestUsageRemembersNoFiles: each name of a file counts for its part. Seen to fail with all files of several links
// remembered, of which a container makes ten millions (340 MiB).
func TestUsageRemembersNoFiles(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "in"), 0o700))
	must(t, os.Mkdir(filepath.Join(dir, "out"), 0o700))
	for _, file := range []string{"a", "b", "c", "d"} {
		must(t, os.WriteFile(filepath.Join(dir, "in", file), nil, 0o600))
		must(t, os.Link(filepath.Join(dir, "in", file), filepath.Join(dir, "out", file)))
	}
	for in, want := range map[string]uint64{"": 3 + 4, "in": 1 + 2} {
		if _, inodes, err := Usage(t.Context(), filepath.Join(dir, in)); err != nil || inodes != want {
			t.Errorf("%q: %d inodes, %v; want %d", in, inodes, err, want)
		}
	}
}

func TestUsageCountsBlocksAndLinksOnce(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/file"), bytes.Repeat([]byte("x"), 100<<10), 0o600))
	must(t, os.Link(filepath.Join(dir, "a/file"), filepath.Join(dir, "a/b/link")))
	sparse := filepath.Join(dir, "sparse")
	must(t, os.WriteFile(sparse, nil, 0o600))
	must(t, os.Truncate(sparse, 1<<40))
	must(t, os.Symlink("/etc", filepath.Join(dir, "etc")))
	out, err := exec.Command("du", "-s", "--block-size=1", dir).Output()
	must(t, err)
	var want uint64
	fmt.Sscan(string(out), &want)
	got, inodes, err := Usage(t.Context(), dir)
	must(t, err)
	if got != want || inodes != 6 {
		t.Errorf("%d bytes and %d inodes, want %d and 6", got, inodes, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 200 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	if _, _, err := Usage(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
	if _, _, err := Usage(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// BenchmarkMount removes nothing while it measures: ext4 is slow to give out inodes that were freed a moment ago. With
// tmpfs the layers and the container's directory cost the file system nothing, and what is left is the mount.
func BenchmarkMount(b *testing.B) {
	for _, c := range []struct {
		name  string
		n     int
		tmpfs bool
	}{{"1", 1, false}, {"10", 10, false}, {"60", 60, false}, {"10-tmpfs", 10, true}} {
		b.Run(c.name, func(b *testing.B) {
			base := b.TempDir()
			if c.tmpfs {
				must(b, unix.Mount("test", base, "tmpfs", 0, ""))
				b.Cleanup(func() { must(b, unix.Unmount(base, unix.MNT_DETACH)) })
			}
			lowers := layers(b, c.n)
			made := 0
			for b.Loop() {
				made++
				if _, err := Mount(b.Context(), Options{Dir: filepath.Join(base, fmt.Sprint(made)), Lowers: lowers}); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			for i := range made {
				must(b, Remove(b.Context(), filepath.Join(base, fmt.Sprint(i+1))))
			}
		})
	}
}

// BenchmarkRemove shows why a layer is not durable unless asked: a durable one syncs its file system as it goes.
func BenchmarkRemove(b *testing.B) {
	for _, durable := range []bool{false, true} {
		b.Run(fmt.Sprintf("durable=%v", durable), func(b *testing.B) {
			base := b.TempDir()
			lowers := layers(b, 5)
			for b.Loop() {
				b.StopTimer()
				dir := filepath.Join(base, "ctr")
				path, err := Mount(b.Context(), Options{Dir: dir, Lowers: lowers, Durable: durable})
				must(b, err)
				must(b, os.WriteFile(filepath.Join(path, "written"), make([]byte, 64<<10), 0o600))
				b.StartTimer()
				must(b, Remove(b.Context(), dir))
			}
		})
	}
}
