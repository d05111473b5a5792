package unpack

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	rt "berth/internal/registrytest"

	"berth/internal/asroot"
)

// apply unpacks entries into a directory, beside which stands a file that nothing may touch.
func apply(t testing.TB, entries ...rt.Entry) (string, *Result, error) {
	t.Helper()
	data, err := rt.Tar(entries...)
	if err != nil {
		t.Fatal(err)
	}
	return applyTar(t, data)
}

const bait = "do not touch"

func applyTar(t testing.TB, data []byte) (string, *Result, error) {
	t.Helper()
	return applyIn(t, t.TempDir(), data)
}

func applyIn(t testing.TB, top string, data []byte) (string, *Result, error) {
	t.Helper()
	return applyLimited(t, top, data, Limits{})
}

func must(t testing.TB, entries ...rt.Entry) (string, *Result) {
	t.Helper()
	root, res, err := apply(t, entries...)
	if err != nil {
		t.Fatal(err)
	}
	return root, res
}

// impliedOf are the paths of a layer's implied directories; "!" is before one that must be no link in lower layers.
func impliedOf(t testing.TB, res *Result) []string {
	t.Helper()
	var at, out []string
	for d, err := range res.Implied.All() {
		if err != nil {
			t.Fatal(err)
		}
		at = append(at[:d.Depth-1], d.Name)
		name := strings.Join(at, "/")
		if d.Implied {
			out = append(out, name)
		}
		if d.Direct {
			out = append(out, "!"+name)
		}
	}
	slices.Sort(out)
	return out
}

func stat(t testing.TB, root, name string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return st
}

func content(t testing.TB, root, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func exists(root, name string) bool {
	_, err := os.Lstat(filepath.Join(root, name))
	return err == nil
}

func xattr(root, name, key string) string {
	buf := make([]byte, 4096)
	n, err := unix.Lgetxattr(filepath.Join(root, name), key, buf)
	if err != nil {
		return err.Error()
	}
	return string(buf[:n])
}

// TestLabelsOfTheMachineThatBuiltTheLayerAreLeftOut: SELinux decides about labels by the node's policy.
func TestLabelsOfTheMachineThatBuiltTheLayerAreLeftOut(t *testing.T) {
	asroot.Need(t, "attributes of the kind security")
	label := "system_u:object_r:container_file_t:s0"
	root, res := must(t, rt.File("f", 0o644, "f").Xattr("security.selinux", label).Xattr("user.k", "v"),
		rt.Symlink("l", "f").Xattr("security.selinux", label), rt.Dir("d", 0o755).Xattr("security.selinux", label))
	for _, name := range []string{"f", "l", "d"} {
		if got := xattr(root, name, "security.selinux"); got == label {
			t.Errorf("%s has the label %s", name, got)
		}
	}
	if got := xattr(root, "f", "user.k"); got != "v" || len(res.Unsupported) > 0 {
		t.Errorf("the other attribute is %q; unsupported: %q", got, res.Unsupported)
	}
}

// TestASparseFileWhoseMapIsWrongIsTheLayersFault: archive/tar has errors of its own for it, which it does not export.
func TestASparseFileWhoseMapIsWrongIsTheLayersFault(t *testing.T) {
	asroot.Need(t, "chown")
	for name, record := range map[string]string{
		"more than the file has": "23 GNU.sparse.map=0,10\n", "less than the file has": "22 GNU.sparse.map=0,2\n",
	} {
		records := "22 GNU.sparse.major=0\n" + "22 GNU.sparse.minor=1\n" + "22 GNU.sparse.size=10\n" +
			"26 GNU.sparse.numblocks=1\n" + record
		data, err := rt.Tar(rt.File("records", 0o644, records), rt.File("f", 0o644, "12345"))
		if err != nil {
			t.Fatal(err)
		}
		data[156] = tar.TypeXHeader // of the first entry
		_, _, err = applyTar(t, rt.Checksummed(data))
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "sparse") {
			t.Errorf("%s: %v, want an invalid argument", name, err)
		}
	}
}

func TestEveryAttributeSurvives(t *testing.T) {
	asroot.Need(t, "chown")
	long := strings.Repeat("long/", 60) + strings.Repeat("n", 200)
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	odd := rt.File("odd \n\xff name", 0o600, "odd")
	root, res := must(t,
		rt.Dir("etc", 0o750).Owned(3, 4),
		rt.File("etc/plain", 0o640, "plain").Owned(1000, 2000),
		rt.File("etc/su", 0o4755, "su").Owned(5, 6),
		rt.File("etc/cap", 0o755, "cap").Owned(7, 7).Xattr("security.capability", capability).Xattr("user.x", "y\x00z"),
		rt.File("etc/huge-ids", 0o644, "").Owned(1<<31, 4294967294),
		rt.Hardlink("etc/hard", "etc/plain"),
		rt.Symlink("etc/link", "../nowhere").Owned(8, 9),
		rt.Dir("tmp", 0o1777).Xattr("user.d", "e"),
		rt.Device("dev/null", tar.TypeChar, 1, 3).Owned(0, 5),
		rt.Device("dev/loop", tar.TypeBlock, 7, 300),
		rt.Device("dev/fifo", tar.TypeFifo, 0, 0),
		rt.File(long, 0o644, "deep"),
		odd,
		rt.Dir("gid", 0o2755),
	)
	for name, want := range map[string]struct{ mode, uid, gid uint32 }{
		"etc": {unix.S_IFDIR | 0o750, 3, 4}, "etc/plain": {unix.S_IFREG | 0o640, 1000, 2000},
		"etc/su":  {unix.S_IFREG | 0o4755, 5, 6},
		"etc/cap": {unix.S_IFREG | 0o755, 7, 7}, "etc/huge-ids": {unix.S_IFREG | 0o644, 1 << 31, 4294967294},
		"etc/link": {unix.S_IFLNK | 0o777, 8, 9}, "tmp": {unix.S_IFDIR | 0o1777, 0, 0},
		"dev/null": {unix.S_IFCHR | 0o600, 0, 5},
		"dev/loop": {unix.S_IFBLK | 0o600, 0, 0}, "dev/fifo": {unix.S_IFIFO | 0o600, 0, 0},
		"gid": {unix.S_IFDIR | 0o2755, 0, 0},
	} {
		st := stat(t, root, name)
		if st.Mode != want.mode || st.Uid != want.uid || st.Gid != want.gid {
			t.Errorf("%s: mode %o owner %d:%d, want %o %d:%d", name, st.Mode, st.Uid, st.Gid, want.mode, want.uid, want.gid)
		}
		if st.Mtim.Sec != rt.Epoch.Unix() && name != "dev" {
			t.Errorf("%s: time %v", name, st.Mtim)
		}
	}
	if stat(t, root, "etc/hard").Ino != stat(t, root, "etc/plain").Ino {
		t.Error("the hard link is another file")
	}
	if st := stat(t, root, "dev/null"); st.Rdev != unix.Mkdev(1, 3) {
		t.Error("device", st.Rdev)
	}
	if st := stat(t, root, "dev/loop"); st.Rdev != unix.Mkdev(7, 300) {
		t.Error("device", st.Rdev)
	}
	if target, _ := os.Readlink(filepath.Join(root, "etc/link")); target != "../nowhere" {
		t.Error("link to", target)
	}
	if got := xattr(root, "etc/cap", "security.capability"); got != capability {
		t.Errorf("capability %q", got)
	}
	if got := xattr(root, "etc/cap", "user.x"); got != "y\x00z" {
		t.Errorf("user.x %q", got)
	}
	if got := xattr(root, "tmp", "user.d"); got != "e" {
		t.Errorf("user.d %q", got)
	}
	if content(t, root, long) != "deep" || content(t, root, odd.Name) != "odd" {
		t.Error("content")
	}
	implied := impliedOf(t, res)
	if !slices.Contains(implied, "dev") || slices.Contains(implied, "etc") || !slices.Contains(implied, "long/long") {
		t.Errorf("implied %v", implied)
	}
	if res.Inodes != uint64(12+1+60+1) {
		t.Errorf("%d inodes", res.Inodes)
	}
}

func TestWhiteoutsAreOverlays(t *testing.T) {
	asroot.Need(t, "chown")
	root, res := must(t,
		rt.Dir("a", 0o755), rt.Whiteout("a/gone"), rt.Opaque("b"), rt.File("b/new", 0o644, "new"),
		// In one layer, what hides and what is new may come in any order; the new stays.
		rt.File("same1", 0o644, "1"), rt.Whiteout("same1"), rt.Whiteout("same2"), rt.File("same2", 0o644, "2"),
		rt.Dir("dir1", 0o755), rt.File("dir1/f", 0o644, ""), rt.Whiteout("dir1"),
		rt.Whiteout("dir2"), rt.Dir("dir2", 0o711), rt.File("dir2/f", 0o644, ""),
		rt.Whiteout("dir3"), rt.File("dir3/f", 0o644, ""),
		// aufs' own files are nobody's.
		rt.File(".wh..wh.plnk/1.2", 0o644, ""), rt.File(".wh..wh.aufs", 0o644, ""),
	)
	for name, want := range map[string]bool{"a/gone": true, "same1": false, "same2": false, "dir1": false} {
		st := stat(t, root, name)
		if got := st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0; got != want {
			t.Errorf("%s is a whiteout: %v", name, got)
		}
	}
	for name, want := range map[string]string{"a": "no data available", "b": "y", "dir1": "y", "dir2": "y", "dir3": "y"} {
		if got := xattr(root, name, OpaqueXattr); got != want {
			t.Errorf("%s opaque: %q, want %q", name, got, want)
		}
	}
	if entries, _ := filepath.Glob(filepath.Join(root, ".wh*")); len(entries) > 0 {
		t.Error("left of aufs:", entries)
	}
	if stat(t, root, "dir2").Mode&0o777 != 0o711 {
		t.Error("mode of dir2")
	}
	if implied := impliedOf(t, res); !slices.Equal(implied, []string{"b"}) || res.OpaqueRoot {
		t.Errorf("implied %v, opaque root %v", implied, res.OpaqueRoot)
	}
	if _, res := must(t, rt.Opaque("."), rt.File("x", 0o644, "")); !res.OpaqueRoot {
		t.Error("an opaque root is not told")
	}
}

func TestLaterEntriesReplaceEarlierOnes(t *testing.T) {
	asroot.Need(t, "chown")
	root, _ := must(t,
		rt.File("a", 0o644, "first and long"), rt.File("a", 0o600, "second"),
		rt.Symlink("b", "a"), rt.File("b", 0o644, "b"),
		rt.Dir("c", 0o755), rt.File("c/d/e", 0o644, "e"), rt.File("c", 0o644, "c"),
		rt.File("f", 0o644, "f"), rt.Dir("f", 0o755), rt.File("f/g", 0o644, "g"),
		rt.Dir("h", 0o700), rt.File("h/i", 0o644, "i"), rt.Dir("h", 0o711),
		rt.Dir("j", 0o755), rt.File("j/k", 0o644, ""), rt.Symlink("j", "h"), rt.File("j/l", 0o644, "l"),
	)
	for name, want := range map[string]string{"a": "second", "b": "b", "c": "c", "f/g": "g", "h/i": "i", "h/l": "l"} {
		if got := content(t, root, name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if stat(t, root, "h").Mode&0o777 != 0o711 {
		t.Error("mode of h")
	}
}

func TestPathsStayInside(t *testing.T) {
	asroot.Need(t, "chown")
	for name, c := range map[string]struct {
		entries []rt.Entry
		inside  string // where it lands; empty: it is refused
	}{
		"dot dot":               {[]rt.Entry{rt.File("../bait", 0o644, "x")}, ""},
		"deep dot dot":          {[]rt.Entry{rt.File("a/b/../../../bait", 0o644, "x")}, ""},
		"dot dot alone":         {[]rt.Entry{rt.Dir("..", 0o755)}, ""},
		"dot dot that stays":    {[]rt.Entry{rt.File("a/../b", 0o644, "x")}, "b"},
		"absolute":              {[]rt.Entry{rt.File("/etc/x", 0o644, "x")}, "etc/x"},
		"doubled slashes":       {[]rt.Entry{rt.File("//etc//./x", 0o644, "x")}, "etc/x"},
		"through absolute link": {[]rt.Entry{rt.Symlink("l", "/tmp"), rt.File("l/x", 0o644, "x")}, "tmp/x"},
		"through climbing link": {[]rt.Entry{rt.Symlink("l", "../../../.."), rt.File("l/bait", 0o644, "x")}, "bait"},
		"through link to parent": {[]rt.Entry{rt.Dir("d", 0o755), rt.Symlink("d/l", ".."),
			rt.File("d/l/x", 0o644, "x")}, "x"},
		"through chain of links": {[]rt.Entry{rt.Symlink("a", "b/../c"), rt.Symlink("c", "/d"),
			rt.File("a/x", 0o644, "x")}, "d/x"},
		"through loop":           {[]rt.Entry{rt.Symlink("a", "b"), rt.Symlink("b", "a"), rt.File("a/x", 0o644, "x")}, ""},
		"through file":           {[]rt.Entry{rt.File("f", 0o644, ""), rt.File("f/x", 0o644, "x")}, ""},
		"hard link outside":      {[]rt.Entry{rt.Hardlink("h", "../bait")}, ""},
		"hard link absolute":     {[]rt.Entry{rt.Hardlink("h", "/etc/passwd")}, ""},
		"hard link by link":      {[]rt.Entry{rt.Symlink("l", ".."), rt.Hardlink("h", "l/bait")}, ""},
		"hard link to nothing":   {[]rt.Entry{rt.Hardlink("h", "nothing")}, ""},
		"hard link to directory": {[]rt.Entry{rt.Dir("d", 0o755), rt.Hardlink("h", "d")}, ""},
		"hard link to itself":    {[]rt.Entry{rt.File("x", 0o644, "x"), rt.Hardlink("x", "./x")}, "x"},
		"hard link from below":   {[]rt.Entry{rt.File("d/f", 0o644, "x"), rt.Hardlink("d", "d/f")}, ""},
		"hard link to the root":  {[]rt.Entry{rt.Hardlink("h", ".")}, ""},
		"file over link":         {[]rt.Entry{rt.Symlink("x", "../bait"), rt.File("x", 0o644, "x")}, "x"},
		"directory over link": {[]rt.Entry{rt.Symlink("d", "/tmp"), rt.Dir("d", 0o777),
			rt.File("d/x", 0o644, "x")}, "d/x"},
		"whiteout of dot dot":     {[]rt.Entry{rt.File(".wh...", 0o644, "")}, ""},
		"whiteout of dot":         {[]rt.Entry{rt.File(".wh..", 0o644, "")}, ""},
		"whiteout of nothing":     {[]rt.Entry{rt.File(".wh.", 0o644, "")}, ""},
		"below a whiteout":        {[]rt.Entry{rt.File(".wh.a/b", 0o644, "")}, ""},
		"whiteout through link":   {[]rt.Entry{rt.Symlink("l", ".."), rt.Whiteout("l/x2"), rt.File("x", 0o644, "x")}, "x"},
		"opaque through link":     {[]rt.Entry{rt.Symlink("l", "/.."), rt.Opaque("l"), rt.File("x", 0o644, "x")}, "x"},
		"overlay xattr":           {[]rt.Entry{rt.Dir("d", 0o755).Xattr("trusted.overlay.redirect", "/etc")}, ""},
		"long component":          {[]rt.Entry{rt.File(strings.Repeat("a", 256), 0o644, "")}, ""},
		"long path":               {[]rt.Entry{rt.File(strings.Repeat("a/", 3000)+"x", 0o644, "")}, ""},
		"long link":               {[]rt.Entry{rt.Symlink("l", strings.Repeat("a", 5000))}, ""},
		"file as root":            {[]rt.Entry{rt.File(".", 0o644, "x")}, ""},
		"link as root":            {[]rt.Entry{rt.Symlink(".", "/etc")}, ""},
		"owner beyond the kernel": {[]rt.Entry{rt.File("x", 0o644, "").Owned(1<<32, 0)}, ""},
		"owner below zero":        {[]rt.Entry{rt.File("x", 0o644, "").Owned(-2, 0)}, ""},
		"a type nobody knows":     {[]rt.Entry{{Header: tar.Header{Typeflag: 'Z', Name: "z"}}}, ""},
		"device beyond":           {[]rt.Entry{rt.Device("d", tar.TypeChar, 1<<20, 0)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root, _, err := apply(t, c.entries...)
			if c.inside == "" {
				if !errors.Is(err, errdefs.ErrInvalidArgument) {
					t.Errorf("error %v, want an invalid argument", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !exists(root, c.inside) {
				out, _ := exec.Command("find", root).Output()
				t.Errorf("no %s in %s", c.inside, out)
			}
		})
	}
}

func TestTimesOfDirectoriesStay(t *testing.T) {
	asroot.Need(t, "chown")
	root, _ := must(t, rt.Dir("a", 0o755), rt.Dir("a/b", 0o755), rt.File("a/b/c", 0o644, "c"), rt.File("a/d", 0o644, "d"))
	for _, d := range []string{"a", "a/b"} {
		if st := stat(t, root, d); st.Mtim.Sec != rt.Epoch.Unix() {
			t.Errorf("%s: %v", d, st.Mtim)
		}
	}
}

func TestHolesStayHoles(t *testing.T) {
	dir := t.TempDir()
	sparse := filepath.Join(dir, "sparse")
	f, err := os.Create(sparse)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{0, 5 << 20, 15 << 20} {
		if _, err := f.WriteAt([]byte("data"), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(16<<20 + 7); err != nil {
		t.Fatal(err)
	}
	f.Close()
	want := content(t, dir, "sparse")
	for _, format := range []string{"gnu", "pax"} {
		data, err := exec.Command("tar", "-C", dir, "-S", "--format="+format, "-cf", "-", "sparse").Output()
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 1<<20 {
			t.Fatalf("tar made %d bytes", len(data))
		}
		root, res, err := applyTar(t, data)
		if err != nil {
			t.Fatal(err)
		}
		if content(t, root, "sparse") != want {
			t.Errorf("%s: content differs", format)
		}
		if st := stat(t, root, "sparse"); st.Blocks*512 > 1<<20 || res.Bytes > 1<<20 || st.Size != int64(len(want)) {
			t.Errorf("%s: %d bytes on disk, %d counted", format, st.Blocks*512, res.Bytes)
		}
	}
}

func TestAHoleBeyondReasonIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "huge"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "huge"), 1<<40); err != nil {
		t.Skip("no file of a terabyte here:", err)
	}
	data, err := exec.Command("tar", "-C", dir, "-S", "-cf", "-", "huge").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	_, err = Layer(context.Background(), root, bytes.NewReader(data), Limits{Bytes: 1<<40 - 1}, Calls{})
	if !errors.Is(err, errdefs.ErrResourceExhausted) || !strings.Contains(err.Error(), KeyBytes) ||
		!strings.Contains(err.Error(), "huge") {
		t.Error(err)
	}
}

func TestManyEntriesTakeLittle(t *testing.T) {
	asroot.Need(t, "chown")
	var entries []rt.Entry
	for i := range 10000 {
		entries = append(entries, rt.File(fmt.Sprintf("d%d/e%d/f%d", i%50, i%7, i), 0o644, ""))
	}
	_, res := must(t, entries...)
	if res.Inodes != 10000+50+350 {
		t.Errorf("%d inodes", res.Inodes)
	}
	if fds, _ := os.ReadDir("/proc/self/fd"); len(fds) > 60 {
		t.Errorf("%d descriptors are left open", len(fds))
	}
}

func TestWhatIsNoTarIsRefused(t *testing.T) {
	good, _ := rt.Tar(rt.File("a", 0o644, strings.Repeat("a", 5000)))
	for name, data := range map[string][]byte{
		"noise":          bytes.Repeat([]byte("noise"), 1000),
		"cut in content": good[:2000],
		"cut in header":  good[:300],
	} {
		if _, _, err := applyTar(t, data); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, res, err := applyTar(t, nil); err != nil || res.Inodes != 0 {
		t.Errorf("nothing at all: %v", err)
	}
}

func TestAFullDiskIsResourceExhausted(t *testing.T) {
	asroot.Need(t, "chown")
	dir := t.TempDir()
	if err := unix.Mount("berth-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, _ := rt.Tar(rt.File("big", 0o644, strings.Repeat("x", 4<<20)))
	_, err = Layer(context.Background(), f, bytes.NewReader(data), Limits{}, Calls{})
	if !errors.Is(err, errdefs.ErrResourceExhausted) || !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
}

func TestErrorsOfTheStreamPass(t *testing.T) {
	broken := errors.New("the line broke")
	good, _ := rt.Tar(rt.File("a", 0o644, strings.Repeat("a", 5000)))
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = Layer(context.Background(), f, io.MultiReader(bytes.NewReader(good[:3000]), errReader{broken}),
		Limits{}, Calls{})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }
