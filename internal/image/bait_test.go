package image

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerd/errdefs"

	"berth/internal/asroot"
	rt "berth/internal/registrytest"
)

// bait is a directory of the host, on the store's file system, that nothing may move, read, change or delete.
type bait struct {
	dir   string
	watch int
}

func layBait(t testing.TB) *bait {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "deep/f"), 0o700); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(watch) })
	for _, d := range []string{dir, filepath.Join(dir, "deep"), filepath.Join(dir, "deep/f")} {
		if _, err := unix.InotifyAddWatch(watch, d, unix.IN_ALL_EVENTS); err != nil {
			t.Fatal(err)
		}
	}
	return &bait{dir, watch}
}

// untouched fails the test if anything has happened to the bait.
func (b *bait) untouched(t testing.TB) {
	t.Helper()
	buf := make([]byte, 4096)
	if n, err := unix.Read(b.watch, buf); n > 0 || err != unix.EAGAIN {
		t.Errorf("the host's directory was touched: %q, %v", buf[:max(n, 0)], err)
	}
	if data, err := os.ReadFile(filepath.Join(b.dir, "secret")); err != nil || string(data) != "secret" {
		t.Errorf("the host's file is %q, %v", data, err)
	}
	if _, err := os.Lstat(filepath.Join(b.dir, "deep/f")); err != nil {
		t.Error(err)
	}
	for { // what the check itself has read
		if n, _ := unix.Read(b.watch, buf); n <= 0 {
			break
		}
	}
}

// TestLayersReachNothingOfTheHost: layers whose links lead to a directory of the host, where a layer above puts
// something into a directory that it does not mention. With variants made by moving directories about by path,
// the first of them emptied the directory of the host into the image, and a pull that then failed deleted it:
// this test was seen to fail.
func TestLayersReachNothingOfTheHost(t *testing.T) {
	asroot.Need(t, "opaque directories")
	f := newFixture(t)
	bait := layBait(t)
	target := bait.dir
	for name, layers := range map[string][][]rt.Entry{
		"a link that becomes the source of a later move": {
			{rt.Dir("b", 0o755), rt.Dir("q", 0o755), rt.Symlink("a", "b"), rt.Symlink("b/p", "/q")},
			{rt.Symlink("a/p", target), rt.File("b/p/f", 0o644, "f")},
		},
		"the same through a relative link": {
			{rt.Dir("b", 0o755), rt.Dir("q", 0o755), rt.Symlink("a", "b"), rt.Symlink("b/p", "/q")},
			{rt.Symlink("a/p", "../../../../../../../../../../.."+target), rt.File("b/p/f", 0o644, "f")},
		},
		"a link that becomes the target of a later move": {
			{rt.Dir("b", 0o755), rt.Symlink("a", "b"), rt.Symlink("c", "b/p")},
			{rt.Symlink("a/p", target), rt.File("c/deep/f", 0o644, "f"), rt.File("a/x/y", 0o644, "")},
		},
		"a link on the way to the target": {
			{rt.Dir("b", 0o755), rt.Symlink("a", "b"), rt.Symlink("c", "b/p/deep")},
			{rt.Symlink("a/p", target), rt.File("c/f/g", 0o644, "f")},
		},
		"a link of the lower layer to the host": {
			{rt.Symlink("a", target), rt.Symlink("b", "../../../../../../.."+target)},
			{rt.File("a/deep/f/g", 0o644, ""), rt.File("b/deep/f/g", 0o644, ""), rt.Whiteout("a/secret")},
		},
		"an opaque directory behind a link": {
			{rt.Symlink("a", target)},
			{rt.Opaque("a"), rt.Opaque("a/deep")},
		},
		"links that change places": {
			{rt.Dir("x", 0o755), rt.Dir("y", 0o755), rt.Symlink("x/l", "/y"), rt.Symlink("y/l", "/x"), rt.Symlink("s", "x"),
				rt.Symlink("t", "y")},
			{rt.Symlink("s/l", target), rt.Symlink("t/l", target), rt.File("x/l/deep/f", 0o644, ""),
				rt.File("y/l/deep/f", 0o644, "")},
		},
		"attributes of a directory behind a link": {
			{rt.Dir("b", 0o755), rt.Symlink("a", "b"), rt.Dir("b/d", 0o700).Owned(7, 7)},
			{rt.Symlink("a/d", target), rt.File("b/d/f", 0o644, "")},
		},
	} {
		for _, fails := range []bool{false, true} {
			var opts []rt.ImageOption
			for _, l := range layers {
				opts = append(opts, rt.Layer(l...))
			}
			if fails { // in the end, after everything else was made
				opts = append(opts, rt.Layer(rt.Symlink("nowhere", "nowhere")), rt.Layer(rt.File("nowhere/f", 0o644, "")))
			}
			f.push("evil:1", opts...)
			_, err := f.Pull(context.Background(), PullRequest{Ref: host + "evil:1"})
			if err != nil && !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s: %v", name, err)
			}
			if fails && err == nil {
				t.Errorf("%s: the pull should fail", name)
			}
			bait.untouched(t)
			if err == nil {
				if err := f.Remove(context.Background(), host+"evil:1"); err != nil {
					t.Error(err)
				}
			}
			f.eventually("all layers are gone", func() bool { return len(f.layerDirs()) == 0 })
			bait.untouched(t)
			f.wantNothing()
			if t.Failed() {
				t.Fatalf("%s, with a failing pull: %v; the pull said: %v", name, fails, err)
			}
			t.Logf("%s: %v", name, err)
		}
	}
}
