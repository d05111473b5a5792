package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	rt "berth/internal/registrytest"
)

// mounted pulls an image and shows it as a container would see it.
func (f *fixture) mounted(name string) string {
	f.t.Helper()
	asroot.Need(f.t, "mount")
	l, err := f.AddReference(f.pull(name), name)
	if err != nil {
		f.t.Fatal(err)
	}
	top := f.t.TempDir()
	if err := unix.Mount("overlay", top, "overlay", unix.MS_RDONLY,
		"lowerdir="+strings.Join(append(l.Dirs, filepath.Join(f.cfg.Root, "layers", emptyLayer, "fs")), ":")); err != nil {
		f.t.Fatalf("mount %v: %v", l.Dirs, err)
	}
	f.t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
	return top
}

type attrs struct{ mode, uid, gid uint32 }

func attrsOf(t *testing.T, root, name string) attrs {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return attrs{st.Mode & 0o7777, st.Uid, st.Gid}
}

func tree(t *testing.T, root string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(p string, e os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(root, p); err == nil && rel != "." {
			if e.Type()&os.ModeSymlink != 0 {
				target, _ := os.Readlink(p)
				rel += "->" + target
			}
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}

func TestDirectoriesThatALayerDoesNotMentionLookAsBelow(t *testing.T) {
	f := newFixture(t)
	base := rt.Layer(rt.Dir("a", 0o711).Owned(3, 3), rt.Dir("a/b", 0o700).Owned(5, 6).Xattr("user.k", "v"),
		rt.File("a/b/old", 0o644, "old"))
	f.push("chain:1", base,
		rt.Layer(rt.File("a/b/c", 0o644, "c"), rt.File("new/x", 0o644, "x")),
		rt.Layer(rt.File("a/b/d/e", 0o644, "e")))
	root := f.mounted("chain:1")
	for name, want := range map[string]attrs{"a": {0o711, 3, 3}, "a/b": {0o700, 5, 6}, "new": {0o755, 0, 0},
		"a/b/d": {0o755, 0, 0}} {
		if got := attrsOf(t, root, name); got != want {
			t.Errorf("%s: %o, want %o", name, got, want)
		}
	}
	buf := make([]byte, 8)
	if n, err := unix.Lgetxattr(filepath.Join(root, "a/b"), "user.k", buf); err != nil || string(buf[:n]) != "v" {
		t.Errorf("xattr %q, %v", buf[:n], err)
	}
	if got := tree(t, root); got != "a a/b a/b/c a/b/d a/b/d/e a/b/old new new/x" {
		t.Error(got)
	}
	// The same layer over other parents looks as those.
	f.push("chain:2", rt.Layer(rt.Dir("a", 0o755), rt.Dir("a/b", 0o1777).Owned(9, 9)),
		rt.Layer(rt.File("a/b/c", 0o644, "c"), rt.File("new/x", 0o644, "x")))
	root2 := f.mounted("chain:2")
	if got := attrsOf(t, root2, "a/b"); got != (attrs{0o1777, 9, 9}) {
		t.Errorf("over other parents: %o", got)
	}
	if got := attrsOf(t, root, "a/b"); got != (attrs{0o700, 5, 6}) {
		t.Errorf("over the first parents, now: %o", got)
	}
	// And over parents which have nothing to say, it is the layer as it is.
	f.push("chain:3", files("z", "z"), rt.Layer(rt.File("a/b/c", 0o644, "c"), rt.File("new/x", 0o644, "x")))
	f.mounted("chain:3")
	for _, n := range []string{"chain:1", "chain:2", "chain:3"} {
		f.Release(n)
		if err := f.Remove(t.Context(), host+n); err != nil {
			t.Fatal(err)
		}
	}
	f.eventually("all layers are gone", func() bool { return len(f.layerDirs()) == 0 })
}

// TestTheRootLooksAsTheTopmostLayerSaysThatMentionsIt: most layers of builders have no entry for their root.
func TestTheRootLooksAsTheTopmostLayerSaysThatMentionsIt(t *testing.T) {
	f := newFixture(t)
	sticky := rt.Layer(rt.Dir(".", 0o1777).Owned(9, 9), rt.File("base", 0o644, "base"))
	file, nothing := rt.Layer(rt.File("a", 0o644, "a")), rt.Layer()
	f.push("root:below", sticky, file, rt.Layer(rt.File("d/e", 0o644, "e")), nothing)
	f.push("root:alone", files("z", "z"), file, rt.Layer(rt.Dir(".", 0o700)))
	f.push("root:plain", sticky, rt.Layer(rt.Dir(".", 0o755)), file)
	for name, want := range map[string]struct {
		attrs
		tree string
	}{
		"root:below": {attrs{0o1777, 9, 9}, "a base d d/e"}, "root:alone": {attrs{0o700, 0, 0}, "a z"},
		"root:plain": {attrs{0o755, 0, 0}, "a base"},
	} {
		top := f.mounted(name)
		if got := attrsOf(t, top, "."); got != want.attrs {
			t.Errorf("%s: the root is %o, want %o", name, got, want.attrs)
		}
		if got := tree(t, top); got != want.tree {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestWhatACrashLeavesOfAVariantGoes(t *testing.T) {
	f := newFixture(t)
	base := rt.Layer(rt.Dir("a", 0o711))
	f.push("left:1", base, rt.Layer(rt.File("a/f", 0o644, "f")), rt.Label("n", "1"))
	f.push("left:2", rt.Layer(rt.Dir("a", 0o700)), rt.Layer(rt.File("a/f", 0o644, "f")), rt.Label("n", "2"))
	f.push("plain:1", rt.Layer(rt.File("a/f", 0o644, "f")))
	f.pull("plain:1")
	dirs := f.layerDirs()
	if len(dirs) != 1 {
		t.Fatal(dirs)
	}
	staged := filepath.Join(f.cfg.Root, "layers", dirs[0], stagingDir)
	leave := func() {
		if err := os.MkdirAll(filepath.Join(staged, "a/b"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	f.reopen()
	if _, err := os.Lstat(staged); err == nil {
		t.Error("it is still there after a start")
	}
	if err := f.Collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := f.layerDirs(); len(got) != 1 {
		t.Errorf("layers %v", got)
	}
	leave() // as if the start had not been able to
	if got := attrsOf(t, f.mounted("left:1"), "a"); got.mode != 0o711 {
		t.Errorf("a: %o", got)
	}
	if got := attrsOf(t, f.mounted("left:2"), "a"); got.mode != 0o700 {
		t.Errorf("a: %o", got)
	}
}

// TestAPullThatWaitsForAVariantEndsWithItsContext: who makes a variant of a hostile layer may take long, and holds up
// only those who need one of the same layer.
func TestAPullThatWaitsForAVariantEndsWithItsContext(t *testing.T) {
	f := newFixture(t)
	f.push("plain:1", rt.Layer(rt.File("a/f", 0o644, "f")))
	f.push("same:1", rt.Layer(rt.Dir("a", 0o711)), rt.Layer(rt.File("a/f", 0o644, "f")))
	f.push("other:1", rt.Layer(rt.Dir("a", 0o711)), rt.Layer(rt.File("a/g", 0o644, "g")))
	f.pull("plain:1")
	busy := f.layerDirs()[0]
	f.index.mu.Lock()
	f.index.variants[busy] = make(chan struct{})
	f.index.mu.Unlock()
	if got := attrsOf(t, f.mounted("other:1"), "a"); got.mode != 0o711 {
		t.Errorf("a: %o", got)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := f.Pull(ctx, PullRequest{Ref: host + "same:1"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the pull ended with %v", err)
	}
	f.index.mu.Lock()
	close(f.index.variants[busy])
	delete(f.index.variants, busy)
	f.index.mu.Unlock()
	if got := attrsOf(t, f.mounted("same:1"), "a"); got.mode != 0o711 {
		t.Errorf("a: %o", got)
	}
}

// TestRecordsOfTheFirstVersionAreRead: it kept whole paths of implied directories in each record.
func TestRecordsOfTheFirstVersionAreRead(t *testing.T) {
	f := newFixture(t)
	f.push("plain:1", rt.Layer(rt.File("a/b/f", 0o644, "f")))
	f.push("chain:1", rt.Layer(rt.Dir("a", 0o711), rt.Dir("a/b", 0o700)), rt.Layer(rt.File("a/b/f", 0o644, "f")))
	f.pull("plain:1")
	f.eventually("it is on disk", func() bool {
		f.index.mu.Lock()
		defer f.index.mu.Unlock()
		for _, l := range f.index.layers {
			return l.Boot == ""
		}
		return false
	})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var old map[string]any
	file := filepath.Join(f.cfg.Root, "layers", f.layerDirs()[0], "layer.json")
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &old)
	}
	if err != nil {
		t.Fatal(err)
	}
	delete(old, "depends")
	delete(old, "impliedDirs")
	old["implied"], old["boot"] = []string{"a", "a/b"}, ""
	if data, err = json.Marshal(old); err != nil {
		t.Fatal(err)
	}
	db, err := openRecords(filepath.Join(f.cfg.Root, "images.db"))
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketLayers).Put([]byte(old["key"].(string)), data) })
	if err := errors.Join(err, db.Close(), os.WriteFile(file, data, 0o600)); err != nil {
		t.Fatal(err)
	}
	f.open()
	root := f.mounted("chain:1")
	for name, mode := range map[string]uint32{"a": 0o711, "a/b": 0o700} {
		if got := attrsOf(t, root, name); got.mode != mode {
			t.Errorf("%s: %o", name, got.mode)
		}
	}
}

func TestALayerThatWritesThroughALinkOfItsParents(t *testing.T) {
	f := newFixture(t)
	base := rt.Layer(rt.Dir("usr", 0o755), rt.Dir("usr/lib", 0o751).Owned(1, 1), rt.File("usr/lib/old", 0o644, "old"),
		rt.File("usr/lib/gone", 0o644, ""), rt.Symlink("lib", "usr/lib"), rt.Symlink("abs", "/usr/lib/sub"),
		rt.Symlink("dangling", "later/dir"))
	f.push("merged:1", base, rt.Layer(
		rt.File("lib/new", 0o644, "new"), rt.Whiteout("lib/gone"), rt.File("lib/deep/er", 0o644, ""),
		rt.File("abs/s", 0o644, "s"), rt.File("dangling/d", 0o644, "d"), rt.File("usr/lib/direct", 0o644, "")))
	root := f.mounted("merged:1")
	want := "abs->/usr/lib/sub dangling->later/dir later later/dir later/dir/d lib->usr/lib usr usr/lib usr/lib/deep " +
		"usr/lib/deep/er " +
		"usr/lib/direct usr/lib/new usr/lib/old usr/lib/sub usr/lib/sub/s"
	if got := tree(t, root); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := attrsOf(t, root, "usr/lib"); got != (attrs{0o751, 1, 1}) {
		t.Errorf("usr/lib: %o", got)
	}
	// A directory that the layer mentions takes the link's place, as it does in a container.
	f.push("merged:2", base, rt.Layer(rt.Dir("lib", 0o755), rt.File("lib/new", 0o644, "new")))
	if got := tree(t, f.mounted("merged:2")); !strings.Contains(got, "lib lib/new usr") || strings.Contains(got, "lib->") {
		t.Error(got)
	}
}

func TestWhiteoutsAndOpaqueDirectoriesHideLowerLayers(t *testing.T) {
	asroot.Need(t, "mount")
	f := newFixture(t)
	f.push("hide:1",
		rt.Layer(rt.Dir("a", 0o700), rt.File("a/x", 0o644, ""), rt.File("a/y", 0o644, ""), rt.Dir("b", 0o755),
			rt.File("b/x", 0o644, ""),
			rt.Dir("c", 0o755), rt.File("c/x", 0o644, "")),
		rt.Layer(rt.Whiteout("a/x"), rt.Opaque("b"), rt.File("b/new", 0o644, ""), rt.Whiteout("c")),
		rt.Layer(rt.File("c/again", 0o644, "")))
	root := f.mounted("hide:1")
	if got := tree(t, root); got != "a a/y b b/new c c/again" {
		t.Error(got)
	}
	if got := attrsOf(t, root, "a"); got.mode != 0o700 {
		t.Errorf("a: %o", got)
	}
	f.push("hide:2", rt.Layer(rt.File("old", 0o644, "")), rt.Layer(rt.Opaque("."), rt.File("new", 0o644, "")),
		rt.Layer(rt.File("top", 0o644, "")))
	if got := tree(t, f.mounted("hide:2")); got != "new top" {
		t.Errorf("below an opaque root: %s", got)
	}
}

// TestAVariantLooksAtManyLayers: a child has a mount and descriptors for each. Seen to fail where the number of
// descriptors did not depend on that of directories.
func TestAVariantLooksAtManyLayers(t *testing.T) {
	long(t)
	f := newFixture(t)
	var layers []rt.ImageOption
	for i := range 150 {
		layers = append(layers, rt.Layer(rt.Dir("d", 0o711), rt.Dir("d/e", 0o711), rt.Dir("d/e/g", 0o711),
			rt.File(fmt.Sprintf("d/e/g/%d", i), 0o644, "x")))
	}
	f.push("a:1", append(layers, rt.Layer(rt.File("d/e/g/h/last", 0o644, "x")))...)
	held, err := f.AddReference(f.pull("a:1"), "test")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(held.Dirs[0], "d/e/g")); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestAVariantCopiesWhatCannotHaveMoreNames: the child that makes it may make few system calls, and no other package's
// tests copy there.
func TestAVariantCopiesWhatCannotHaveMoreNames(t *testing.T) {
	long(t)
	f := newFixture(t)
	upper := []rt.Entry{rt.File("d/0", 0o640, "content")}
	for i := range 40_000 { // ext4 takes 65,000 names of a file
		upper = append(upper, rt.Hardlink(fmt.Sprintf("d/%d", i+1), "d/0"))
	}
	f.push("a:1", rt.Layer(rt.Dir("d", 0o711)), rt.Layer(upper...))
	held, err := f.AddReference(f.pull("a:1"), "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0", "1", "40000"} {
		if data, err := os.ReadFile(filepath.Join(held.Dirs[0], "d", name)); err != nil || string(data) != "content" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(held.Dirs[0], "d")); err != nil || len(entries) != 40_001 {
		t.Errorf("%d names, %v", len(entries), err)
	}
}
