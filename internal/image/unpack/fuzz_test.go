package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	rt "berth/internal/registrytest"

	"berth/internal/asroot"
)

// FuzzLayer unpacks anything: nothing may appear or change outside of the root (applyIn looks), nothing may panic,
// and what is said of a layer must be so.
func FuzzLayer(f *testing.F) {
	asroot.Need(f, "chown")
	seed := func(entries ...rt.Entry) {
		data, err := rt.Tar(entries...)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	seed(rt.Dir("a", 0o755), rt.File("a/b", 0o644, "b"), rt.Hardlink("c", "a/b"), rt.Symlink("d", ".."),
		rt.File("d/bait", 0o644, "e"))
	seed(rt.File("../bait", 0o644, "x"))
	seed(rt.Symlink("l", "/"), rt.Whiteout("l/x"), rt.Opaque("l"), rt.Dir("l/y", 0o700))
	seed(rt.Whiteout("a"), rt.File("a/b", 0o644, ""), rt.File(".wh...", 0o644, ""))
	seed(rt.Device("n", tar.TypeChar, 0, 0), rt.File("n/x", 0o644, ""), rt.File("long", 0o644, "").Xattr("user.a", "b"))
	seed(rt.File("a/b/c", 0o644, ""), rt.Opaque("a"), rt.Dir("a/b", 0o700), rt.File("a/b", 0o644, ""),
		rt.Dir("a/b", 0o700))
	seed(rt.Symlink("a", "b/.."), rt.File("a/c", 0o644, ""), rt.Hardlink("d", "a/c"), rt.Hardlink("a", "d"))
	seed(rt.File("a/b/c/d/e", 0o644, "x"), rt.Symlink("a/b", "/"), rt.File("a/b/bait", 0o644, "x"), rt.Whiteout("a"))
	seed(rt.File(strings.Repeat("n", 200), 0o644, strings.Repeat("x", 40_000)), rt.Dir(".", 0o700), rt.Opaque("."))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<18 {
			return
		}
		// In memory: removing files is what takes the time elsewhere.
		top, err := os.MkdirTemp("/dev/shm", "berth-fuzz-")
		if err != nil {
			t.Skip(err)
		}
		defer os.RemoveAll(top)
		limits := Limits{Entries: 20_000, Bytes: 64 << 20, PathMemory: 4 << 20}
		root, res, err := applyLimited(t, top, rt.Checksummed(data), limits)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalidArgument) && !errors.Is(err, errdefs.ErrResourceExhausted) {
				t.Errorf("error %v is nobody's", err)
			}
			return
		}
		consistent(t, root, res, limits)
	})
}

// consistent compares what is said of a layer with its directory.
func consistent(t *testing.T, root string, res *Result, limits Limits) {
	t.Helper()
	inodes := map[uint64]bool{}
	var bytes uint64
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if !inodes[st.Ino] && st.Mode&unix.S_IFMT == unix.S_IFREG {
			bytes += uint64(st.Blocks) * 512
		}
		inodes[st.Ino] = true
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// What later entries have replaced counts too.
	if uint64(len(inodes)) > res.Inodes || bytes > res.Bytes || res.Inodes > 2*limits.Entries || res.Bytes > limits.Bytes {
		t.Errorf("%d inodes, %d bytes; it says %d and %d", len(inodes), bytes, res.Inodes, res.Bytes)
	}
	if isOpaque := xattr(root, ".", OpaqueXattr) == "y"; isOpaque != res.OpaqueRoot {
		t.Errorf("the root is opaque: %v; it says %v", isOpaque, res.OpaqueRoot)
	}
	var at []string
	for d, err := range res.Implied.All() {
		if err != nil {
			t.Fatal(err)
		}
		at = append(at[:d.Depth-1], d.Name)
		if !d.Implied {
			continue
		}
		name := strings.Join(at, "/")
		if len(name) >= unix.PathMax {
			continue
		}
		st := stat(t, root, name)
		if st.Mode != unix.S_IFDIR|0o755 || st.Uid != 0 || st.Gid != 0 {
			t.Errorf("the implied directory %q has mode %o, owner %d:%d", name, st.Mode, st.Uid, st.Gid)
		}
	}
}

func applyLimited(t testing.TB, top string, data []byte, limits Limits) (string, *Result, error) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(top, "bait"), []byte(bait), 0o600); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(top, "fs")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	res, err := Layer(context.Background(), f, bytes.NewReader(data), limits, Calls{})
	entries, readErr := os.ReadDir(top)
	if readErr != nil || len(entries) != 2 {
		t.Errorf("beside the root: %v, %v", entries, readErr)
	}
	if got, _ := os.ReadFile(filepath.Join(top, "bait")); string(got) != bait {
		t.Errorf("the bait is %q", got)
	}
	return root, res, err
}
