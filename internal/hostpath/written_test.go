package hostpath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/hostpath/mutetest"
)

// withoutChildren lets no child begin in the test that looks at directories which Berth writes to.
func withoutChildren(t *testing.T) {
	t.Helper()
	full := func(n int) {
		for i := range maxStuck {
			written.give(fmt.Sprint("/mute/", i), fmt.Sprint("0:", 1000+i/maxOfOne), n)
		}
	}
	full(1)
	t.Cleanup(func() { full(-1) })
}

// TestADirectoryIsMadeWithoutAChild where Berth's own directories are, and found without one wherever the kernel knows
// it. Seen to fail without makeNear.
func TestADirectoryIsMadeWithoutAChild(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	own, elsewhere := filepath.Join(top, "berth/root"), filepath.Join(top, "link")
	must(t, os.MkdirAll(own, 0o700))
	must(t, os.Mkdir(filepath.Join(top, "real"), 0o700))
	must(t, os.Symlink("real", elsewhere))
	withoutChildren(t)
	path := filepath.Join(top, "logs/pod/container")
	for _, what := range []string{"new", "there already"} {
		if dir, err := MakeDir(own, path); err != nil || dir != path {
			t.Errorf("%s: %q, %v", what, dir, err)
		}
	}
	if st, err := os.Stat(path); err != nil || !st.IsDir() || st.Mode().Perm() != 0o755 {
		t.Errorf("it is %v (%v)", st, err)
	}
	if dir, err := MakeDir(own, elsewhere); err != nil || dir != filepath.Join(top, "real") {
		t.Errorf("through a link that is known: %q, %v", dir, err)
	}
	// What is behind a link may be on another file system.
	if dir, err := MakeDir(own, filepath.Join(elsewhere, "new")); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("a new one through a link, without a child: %q, %v", dir, err)
	}
}

func TestADirectoryIsMadeByAChild(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.Mkdir(filepath.Join(top, "real"), 0o700))
	must(t, os.Symlink("real", filepath.Join(top, "link")))
	want := filepath.Join(top, "real/a/b")
	if dir, err := MakeDir(top, filepath.Join(top, "link/a/b")); err != nil || dir != want {
		t.Errorf("%q, %v; want %q", dir, err, want)
	}
	if st, err := os.Stat(want); err != nil || !st.IsDir() || st.Mode().Perm() != 0o755 {
		t.Errorf("it is %v (%v)", st, err)
	}
	must(t, os.WriteFile(filepath.Join(top, "file"), nil, 0o600))
	if dir, err := MakeDir(top, filepath.Join(top, "file/a")); err == nil {
		t.Errorf("below a file: %q", dir)
	}
	if dir, err := ResolveDir(filepath.Join(top, "link/a/b")); err != nil || dir != want {
		t.Errorf("resolved: %q, %v; want %q", dir, err, want)
	}
}

// TestADirectoryOnAFileSystemThatDoesNotAnswer is waited for by a child, also if Berth's own directories are beside it.
func TestADirectoryOnAFileSystemThatDoesNotAnswer(t *testing.T) {
	top := t.TempDir()
	mount := filepath.Join(top, "mount")
	must(t, os.Mkdir(mount, 0o700))
	f := mutetest.Mount(t, mount)
	f.Mute()
	if dir, err := MakeDir(top, filepath.Join(mount, "pod")); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("%q, %v", dir, err)
	}
	f.End()
}
