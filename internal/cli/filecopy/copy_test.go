package filecopy

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/lease/leasetest"
)

// rooted is a tree as that of a container, in a directory, and another directory outside of it that nobody may reach.
func rooted(t *testing.T) (tree *Tree, root, outside string) {
	t.Helper()
	base := t.TempDir()
	root, outside = filepath.Join(base, "root"), filepath.Join(base, "outside")
	for _, dir := range []string{root, outside} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	tree = &Tree{root: fd, inside: true, uid: -1, gid: -1}
	t.Cleanup(tree.Close)
	return tree, root, outside
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

func none(t *testing.T) func(string, string) {
	return func(path, why string) { t.Errorf("%s is skipped: %s", path, why) }
}

// TestNoCopyLeavesTheRoot: links of a container lead to files of this machine, and neither is one read nor is one
// written. Seen to fail without RESOLVE_IN_ROOT in Tree.open, and without O_NOFOLLOW in existing.
func TestNoCopyLeavesTheRoot(t *testing.T) {
	tree, root, outside := rooted(t)
	secret := filepath.Join(outside, "secret")
	put(t, secret, "secret")
	link(t, secret, filepath.Join(root, "absolute"))
	link(t, "../outside/secret", filepath.Join(root, "relative"))
	link(t, outside, filepath.Join(root, "directory"))
	for _, path := range []string{"/absolute", "/relative", "/directory/secret", "../outside/secret", secret} {
		to := filepath.Join(t.TempDir(), "copy")
		if err := Copy(t.Context(), tree, path, Here(), to, none(t)); err == nil {
			t.Errorf("%s is read: %q", path, read(t, to))
		}
	}
	mine := filepath.Join(t.TempDir(), "mine")
	put(t, mine, "written by a copy")
	for _, path := range []string{"/absolute", "/relative", "/directory/secret", "/directory/new", "/directory/",
		"../outside/secret"} {
		if err := Copy(t.Context(), Here(), mine, tree, path, none(t)); err == nil {
			t.Errorf("%s is written", path)
		}
	}
	if got := read(t, secret); got != "secret" {
		t.Errorf("the file outside is %q", got)
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) != 1 {
		t.Errorf("outside there is %v, %v", list, err)
	}
}

// TestALinkAtTheDestinationIsNotFollowed: what an earlier copy of a container's links left leads no later copy to
// another file of this machine. Seen to fail without O_NOFOLLOW in directory and in existing.
func TestALinkAtTheDestinationIsNotFollowed(t *testing.T) {
	tree, root, outside := rooted(t)
	put(t, filepath.Join(root, "tree/file"), "from the container")
	put(t, filepath.Join(root, "tree/below/file"), "from the container")
	put(t, filepath.Join(outside, "file"), "mine")
	for _, name := range []string{"file", "below"} {
		to := t.TempDir()
		target := filepath.Join(outside, "file")
		if name == "below" {
			target = outside
		}
		link(t, target, filepath.Join(to, name))
		err := Copy(t.Context(), tree, "/tree/.", Here(), to, none(t))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if got := read(t, filepath.Join(outside, "file")); got != "mine" {
			t.Errorf("%s: the file outside is %q", name, got)
		}
	}
}

// TestATreeIsCopiedUnderTheNameThatCpGivesIt, with its links and its permissions, and without a setuid bit.
func TestATreeIsCopiedUnderTheNameThatCpGivesIt(t *testing.T) {
	tree, root, _ := rooted(t)
	put(t, filepath.Join(root, "src/a/program"), "run me")
	if err := os.Chmod(filepath.Join(root, "src/a/program"), 0o751|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	link(t, "/a/program", filepath.Join(root, "src/link"))
	for _, test := range []struct{ source, destination, at string }{
		{"/src", "", "src"}, {"/src/.", "", "."}, {"src", "new", "new"}, {"/src", "new", "new/src"},
	} {
		to := t.TempDir()
		if test.at == "new/src" {
			put(t, filepath.Join(to, "new/old"), "stays")
		}
		for range 2 { // a second copy takes the place of the first
			if test.at == "new" {
				to = t.TempDir()
			}
			if err := Copy(t.Context(), tree, test.source, Here(), filepath.Join(to, test.destination), none(t)); err != nil {
				t.Fatalf("%+v: %v", test, err)
			}
		}
		at := filepath.Join(to, test.at)
		info, err := os.Stat(filepath.Join(at, "a/program"))
		if err != nil || info.Mode() != 0o751 || read(t, filepath.Join(at, "a/program")) != "run me" {
			t.Errorf("%+v: %v, %v", test, info, err)
		}
		if target, err := os.Readlink(filepath.Join(at, "link")); err != nil || target != "/a/program" {
			t.Errorf("%+v: %q, %v", test, target, err)
		}
	}
}

// TestWhatIsNoFileIsSkipped and makes the copy fail once the rest is there; no FIFO is waited for.
func TestWhatIsNoFileIsSkipped(t *testing.T) {
	tree, root, _ := rooted(t)
	put(t, filepath.Join(root, "d/file"), "x")
	if err := unix.Mkfifo(filepath.Join(root, "d/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(root, "e/file"), "x")
	to := t.TempDir()
	var skipped []string
	err := Copy(t.Context(), tree, "/d", Here(), to, func(path, _ string) { skipped = append(skipped, path) })
	if err == nil || len(skipped) != 1 || skipped[0] != "/d/fifo" || read(t, filepath.Join(to, "d/file")) != "x" {
		t.Errorf("%v, skipped %q", err, skipped)
	}
	put(t, filepath.Join(to, "mine"), "y")
	for what, try := range map[string]func() error{
		"a FIFO that is written": func() error {
			return Copy(t.Context(), Here(), filepath.Join(to, "mine"), tree, "/d/fifo", none(t))
		},
		"a FIFO that is read": func() error { return Copy(t.Context(), tree, "/d/fifo", Here(), to, none(t)) },
		"a file onto itself":  func() error { return Copy(t.Context(), tree, "/d/file", tree, "/d/file", none(t)) },
		"a tree into itself":  func() error { return Copy(t.Context(), tree, "/e/.", tree, "/e/new", none(t)) },
		"a tree onto a file": func() error {
			return Copy(t.Context(), tree, "/d", Here(), filepath.Join(to, "mine"), none(t))
		},
		"what is not there":     func() error { return Copy(t.Context(), tree, "/gone", Here(), to, none(t)) },
		"to where no directory": func() error { return Copy(t.Context(), tree, "/d/file", Here(), to+"/no/such", none(t)) },
	} {
		if try() == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if got := read(t, filepath.Join(root, "d/file")); got != "x" {
		t.Errorf("the file that was copied onto itself is %q", got)
	}
}

func TestAPlaceIsInAContainerOrHere(t *testing.T) {
	for text, want := range map[string]Place{
		"hello/web:/etc/passwd": {"hello/web", "/etc/passwd"}, "hello:tmp": {"hello", "tmp"}, "file": {"", "file"},
		"./a:b": {"", "./a:b"}, "/a:b": {"", "/a:b"}, "ns/pod/c:/a:b": {"ns/pod/c", "/a:b"},
	} {
		if got, err := ParsePlace(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "hello:", ":/etc"} {
		if got, err := ParsePlace(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// TestAProcessOfAnotherCgroupIsNoContainers: this process is not the container's.
func TestAProcessOfAnotherCgroupIsNoContainers(t *testing.T) {
	for _, cgroup := range []string{"", "/kubepods/pod1/container-of-nobody"} {
		if tree, err := OpenContainer(os.Getpid(), cgroup); err == nil {
			tree.Close()
			t.Errorf("cgroup %q: the root of this process is opened", cgroup)
		}
	}
}

// TestAHoleFillsNoDisk: a container makes a file of any length with one call. Seen to fail, by writing zeros until the
// time was over, with io.Copy in place of sparse.Copy.
func TestAHoleFillsNoDisk(t *testing.T) {
	tree, root, _ := rooted(t)
	const size = 1 << 40
	source := filepath.Join(root, "file")
	put(t, source, "begin")
	if err := os.Truncate(source, size); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	to := filepath.Join(t.TempDir(), "copy")
	if err := Copy(ctx, tree, "/file", Here(), to, none(t)); err != nil {
		t.Error(err)
	}
	var is unix.Stat_t
	if err := unix.Stat(to, &is); err != nil || is.Size != size || is.Blocks > 1024 {
		t.Errorf("the copy has %d bytes in %d blocks, %v", is.Size, is.Blocks, err)
	}
}

// TestATreeThatIsTooDeepIsSkipped: each level has its path in memory, and a container makes levels without an end. Seen
// to fail without the bound in entry.
func TestATreeThatIsTooDeepIsSkipped(t *testing.T) {
	tree, root, _ := rooted(t)
	name := strings.Repeat("d", 250)
	put(t, filepath.Join(root, "deep/file"), "x")
	at, err := unix.Open(filepath.Join(root, "deep"), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			t.Fatal(err)
		}
		below, err := unix.Openat(at, name, unix.O_PATH|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = below
	}
	unix.Close(at)
	to := t.TempDir()
	var skipped []string
	err = Copy(t.Context(), tree, "/deep", Here(), to, func(path, _ string) { skipped = append(skipped, path) })
	if err == nil || len(skipped) != 1 || len(skipped[0]) < unix.PathMax || len(skipped[0]) > 2*unix.PathMax {
		t.Errorf("%v, %d are skipped", err, len(skipped))
	}
	if got := read(t, filepath.Join(to, "deep/file")); got != "x" {
		t.Errorf("beside it there is %q", got)
	}
}

// TestFilesOfTheKernelAreLeftAlone: a container has its link lead to a file that never ends, or that does something
// when it is written, and that root may write where the container may not. Seen to fail without the looks at the file
// systems (kernels). What is of this machine is copied.
func TestFilesOfTheKernelAreLeftAlone(t *testing.T) {
	asroot.Need(t, "mounts")
	tree, root, _ := rooted(t)
	proc := filepath.Join(root, "proc")
	if err := os.Mkdir(proc, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", proc, "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(proc, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	link(t, "/proc/version", filepath.Join(root, "log"))
	link(t, "/proc/self", filepath.Join(root, "here"))
	mine := filepath.Join(t.TempDir(), "comm")
	put(t, mine, "changed")
	before := read(t, "/proc/self/comm")
	for what, try := range map[string]func() error{
		"a file that is read": func() error {
			return Copy(t.Context(), tree, "/log", Here(), filepath.Join(t.TempDir(), "log"), none(t))
		},
		"a file that is written": func() error { return Copy(t.Context(), Here(), mine, tree, "/here/comm", none(t)) },
		"a file in a directory":  func() error { return Copy(t.Context(), Here(), mine, tree, "/here", none(t)) },
		"a directory that is read": func() error {
			return Copy(t.Context(), tree, "/proc/fs", Here(), t.TempDir(), none(t))
		},
		"a directory that is written": func() error {
			return Copy(t.Context(), Here(), filepath.Dir(mine)+"/.", tree, "/here", none(t))
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "made by the kernel") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := read(t, "/proc/self/comm"); got != before {
		t.Errorf("the name of this process is %q", got)
	}
	into := filepath.Join(root, "version")
	err := Copy(t.Context(), Here(), "/proc/version", tree, "/version", none(t))
	if want := read(t, "/proc/version"); err != nil || read(t, into) != want {
		t.Errorf("of this machine: %q, %v", read(t, into), err)
	}
}

// TestAFileWithoutALengthEnds: one of FUSE may give bytes for ever. Seen to fail, by its time-out, without maxUnsized.
func TestAFileWithoutALengthEnds(t *testing.T) {
	endless, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer endless.Close()
	to, err := os.Create(filepath.Join(t.TempDir(), "copy"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := (&copier{ctx: ctx}).content(to, endless, false); err == nil || ctx.Err() != nil {
		t.Error(err)
	}
}

// TestALeaseHoldsNoCopyUp: a container may hold leases of its files, each of which holds up an open for 45 s. The copy
// goes on without these files, and says so. Seen to fail with a plain open in reopen.
func TestALeaseHoldsNoCopyUp(t *testing.T) {
	t.Parallel()
	tree, root, outside := rooted(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		put(t, filepath.Join(root, "dir", name), "content of "+name)
	}
	for _, name := range []string{"a", "b", "c"} {
		leasetest.Hold(t, filepath.Join(root, "dir", name))
	}
	var skipped []string
	begin := time.Now()
	err := Copy(t.Context(), tree, "/dir", Here(), outside, func(path, why string) {
		skipped = append(skipped, filepath.Base(path))
		if !strings.Contains(why, "lease") {
			t.Errorf("%s is skipped, because %s", path, why)
		}
	})
	if took := time.Since(begin); took > 2*leaseWait {
		t.Errorf("it took %s", took)
	}
	slices.Sort(skipped)
	if err == nil || !slices.Equal(skipped, []string{"a", "b", "c"}) {
		t.Errorf("skipped %q, %v", skipped, err)
	}
	if got := read(t, filepath.Join(outside, "dir", "d")); got != "content of d" {
		t.Errorf("the other file has %q", got)
	}
}
