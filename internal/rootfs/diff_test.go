package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
)

// diffOf writes down the writable layer of a container directory and returns a line for each entry of the tar.
func diffOf(t *testing.T, dir string) (entries map[string]string, deleted []string, err error) {
	t.Helper()
	var b bytes.Buffer
	if deleted, err = WriteDiff(context.Background(), &b, dir); err != nil {
		return nil, nil, err
	}
	entries = map[string]string{}
	for tr := tar.NewReader(&b); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return entries, deleted, nil
		}
		must(t, err)
		data, err := io.ReadAll(tr)
		must(t, err)
		line := fmt.Sprintf("%c %o %d:%d %d %q", h.Typeflag, h.Mode, h.Uid, h.Gid, h.ModTime.Unix(), h.Linkname+string(data))
		for key, value := range h.PAXRecords {
			if name, ok := strings.CutPrefix(key, paxXattr); ok {
				line += fmt.Sprintf(" %s=%q", name, value)
			}
		}
		if parent := filepath.Dir(strings.TrimSuffix(h.Name, "/")); parent != "." && entries[parent+"/"] == "" {
			t.Errorf("%s comes before its directory", h.Name)
		}
		entries[h.Name] = line
	}
}

func TestADiffHasAllThatWasWritten(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	dir := t.TempDir()
	upper := Upper(dir)
	must(t, os.MkdirAll(filepath.Join(upper, "d/sub"), 0o755))
	must(t, os.MkdirAll(filepath.Join(upper, "hides"), 0o700))
	must(t, os.WriteFile(filepath.Join(upper, "d/file"), []byte("content"), 0o600))
	must(t, unix.Mkfifo(filepath.Join(upper, "pipe"), 0o600))
	at := []unix.Timespec{{Sec: 5}, {Sec: 7}}
	for _, err := range []error{
		os.Link(filepath.Join(upper, "d/file"), filepath.Join(upper, "hard")),
		os.Symlink("/etc/passwd", filepath.Join(upper, "soft")),
		os.Lchown(filepath.Join(upper, "soft"), 3, 4),
		unix.Mknod(filepath.Join(upper, "d/gone"), unix.S_IFCHR, 0),
		unix.Mknod(filepath.Join(upper, "null"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))),
		os.Chown(filepath.Join(upper, "d/file"), 1, 2),
		unix.Chmod(filepath.Join(upper, "null"), 0o644),
		unix.Chmod(filepath.Join(upper, "d/file"), 0o4755),
		unix.Lsetxattr(filepath.Join(upper, "d/file"), "user.k", []byte("v\x00w"), 0),
		unix.Lsetxattr(filepath.Join(upper, "hides"), opaqueXattr, []byte("y"), 0),
		unix.Lsetxattr(filepath.Join(upper, "d"), "trusted.overlay.impure", []byte("y"), 0),
	} {
		must(t, err)
	}
	for _, name := range []string{"d/file", "soft", "null", "pipe", "d/sub", "d", "hides", "."} {
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(upper, name), at, unix.AT_SYMLINK_NOFOLLOW))
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(upper, "s")}))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, upper, at, 0))

	got, deleted, err := diffOf(t, dir)
	must(t, err)
	// Which of two names of a file comes first is the file system's affair.
	first, second := "hard", "d/file"
	if strings.HasPrefix(got["d/file"], "0") {
		first, second = second, first
	}
	want := map[string]string{
		"./": `5 755 0:0 7 ""`, "d/": `5 755 0:0 7 ""`, "d/sub/": `5 755 0:0 7 ""`, "hides/": `5 700 0:0 7 ""`,
		"hides/" + opaqueWhiteout: `0 0 0:0 0 ""`, "d/.wh.gone": `0 0 0:0 0 ""`, "pipe": `6 600 0:0 7 ""`,
		"null": `3 644 0:0 7 ""`,
		"soft": `2 777 3:4 7 "/etc/passwd"`, first: `0 4755 1:2 7 "content" user.k="v\x00w"`,
		second: fmt.Sprintf(`1 0 0:0 0 %q`, first),
	}
	for name, line := range want {
		if got[name] != line {
			t.Errorf("%s is %s, want %s", name, got[name], line)
		}
	}
	if len(got) != len(want) {
		t.Errorf("entries %v", got)
	}
	if !slices.Equal(deleted, []string{"/d/gone"}) {
		t.Errorf("deleted %v", deleted)
	}
}

// TestADiffNeverLeavesTheLayer: while a layer is archived, a directory and a file of it change places with links
// that lead out of it. It was seen to fail with a walk by paths.
func TestADiffNeverLeavesTheLayer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	dir, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "f"), []byte("secret"), 0o600))
	upper := Upper(dir)
	must(t, os.MkdirAll(filepath.Join(upper, "a"), 0o755))
	must(t, os.WriteFile(filepath.Join(upper, "a/f"), []byte("content"), 0o600))
	must(t, os.WriteFile(filepath.Join(upper, "f"), []byte("content"), 0o600))
	must(t, os.Symlink(outside, filepath.Join(upper, "link")))
	must(t, os.Symlink(filepath.Join(outside, "f"), filepath.Join(upper, "flink")))
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(upper, "a"), unix.AT_FDCWD, filepath.Join(upper, "link"),
				unix.RENAME_EXCHANGE)
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(upper, "f"), unix.AT_FDCWD, filepath.Join(upper, "flink"),
				unix.RENAME_EXCHANGE)
		}
	}()
	defer func() { close(stop); <-ended }()
	whole := 0
	for range 3000 {
		var b bytes.Buffer
		if _, err := WriteDiff(context.Background(), &b, dir); err == nil {
			whole++
		}
		if bytes.Contains(b.Bytes(), []byte("secret")) {
			t.Fatal("a file from outside the layer is in the archive")
		}
	}
	t.Logf("%d of 3000 archives were whole", whole)
}

func TestHolesWithoutEndAreNotArchived(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(Upper(dir), 0o755))
	must(t, os.WriteFile(filepath.Join(Upper(dir), "huge"), nil, 0o600))
	if err := os.Truncate(filepath.Join(Upper(dir), "huge"), 1<<40); err != nil {
		t.Skip("no file of a terabyte here:", err)
	}
	if _, err := WriteDiff(context.Background(), io.Discard, dir); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Error(err)
	}
}

// stopper ends a context when a megabyte has been written to it, and counts the bytes.
type stopper struct {
	stop    context.CancelFunc
	written int64
}

func (s *stopper) Write(b []byte) (int, error) {
	if s.written += int64(len(b)); s.written > 1<<20 {
		s.stop()
	}
	return len(b), nil
}

// A container can write a file of any size, and a stop of it waits for the copy of the file. Seen to fail with io.CopyN
// in file: all of the file was written.
func TestADiffEndsWithItsContextInAFile(t *testing.T) {
	const size = 4 << 30
	dir := t.TempDir()
	must(t, os.Mkdir(Upper(dir), 0o755))
	must(t, os.WriteFile(filepath.Join(Upper(dir), "huge"), nil, 0o600))
	must(t, os.Truncate(filepath.Join(Upper(dir), "huge"), size))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	w := &stopper{stop: stop}
	if _, err := WriteDiff(ctx, w, dir); !errors.Is(err, context.Canceled) || w.written >= size {
		t.Errorf("%d bytes were written, %v", w.written, err)
	}
}

// TestWhatADiffKeepsInMemoryIsBounded: files with several names, and those that are deleted.
func TestWhatADiffKeepsInMemoryIsBounded(t *testing.T) {
	asroot.Need(t, "device nodes")
	defer func(most int) { mostMemory = most }(mostMemory)
	mostMemory = 64 << 10
	for what, plant := range map[string]func(name string) error{
		"several names": func(name string) error {
			return errors.Join(os.WriteFile(name, nil, 0o600), os.Link(name, name+"-too"))
		},
		"deleted": func(name string) error { return unix.Mknod(name, unix.S_IFCHR, 0) },
		"both": func(name string) error {
			return errors.Join(os.WriteFile(name, nil, 0o600), os.Link(name, name+"-too"),
				unix.Mknod(name+"-gone", unix.S_IFCHR, 0))
		},
		"one name": func(name string) error { return os.WriteFile(name, nil, 0o600) },
	} {
		dir := t.TempDir()
		must(t, os.Mkdir(Upper(dir), 0o755))
		count := map[string]int{"deleted": 2000, "both": 400}[what]
		if count == 0 {
			count = 500
		}
		for i := range count {
			must(t, plant(filepath.Join(Upper(dir), fmt.Sprint("f", i))))
		}
		_, err := WriteDiff(context.Background(), io.Discard, dir)
		if bounded := errors.Is(err, errdefs.ErrResourceExhausted); bounded != (what != "one name") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestThePathsInADiffAreBounded: each entry has its whole path, or another text that takes no space of its own on the
// disk. Seen to fail without a bound.
func TestThePathsInADiffAreBounded(t *testing.T) {
	asroot.Need(t, "extended attributes")
	defer func(most int) { mostText = most }(mostText)
	mostText = 100 << 10
	for what, plant := range map[string]func(deep string, i int) error{
		"files":       func(deep string, i int) error { return os.WriteFile(fmt.Sprint(deep, "/f", i), nil, 0o600) },
		"directories": func(deep string, i int) error { return os.Mkdir(fmt.Sprint(deep, "/d", i), 0o700) },
		"opaque": func(deep string, i int) error {
			name := fmt.Sprint(deep, "/d", i)
			return errors.Join(os.Mkdir(name, 0o700), unix.Lsetxattr(name, opaqueXattr, []byte("y"), 0))
		},
		"deleted": func(deep string, i int) error { return unix.Mknod(fmt.Sprint(deep, "/n", i), unix.S_IFCHR, 0) },
		// They are not in the tar, and the path of each is put together all the same.
		"sockets": func(deep string, i int) error { return unix.Mknod(fmt.Sprint(deep, "/s", i), unix.S_IFSOCK|0o600, 0) },
		"names of a link": func(deep string, i int) error {
			deep = filepath.Dir(filepath.Dir(deep))
			if i == 0 {
				return os.Symlink(strings.Repeat("x", 4000), deep+"/l")
			}
			return os.Link(deep+"/l", fmt.Sprint(deep, "/l", i))
		},
		"names of a file": func(deep string, i int) error {
			if i == 0 {
				return os.WriteFile(deep+"/f", nil, 0o600)
			}
			return os.Link(deep+"/f", fmt.Sprint(deep, "/f", i))
		},
		"nothing": func(string, int) error { return nil },
	} {
		dir := t.TempDir()
		deep := Upper(dir) + strings.Repeat("/"+strings.Repeat("d", 250), 12)
		must(t, os.MkdirAll(deep, 0o755))
		count := 40 // of 3 KiB each
		if what == "opaque" || what == "names of a file" {
			count = 20 // with two paths each
		}
		for i := range count {
			must(t, plant(deep, i))
		}
		var b bytes.Buffer
		_, err := WriteDiff(context.Background(), &b, dir)
		if bounded := errors.Is(err, errdefs.ErrResourceExhausted); bounded != (what != "nothing") {
			t.Errorf("%s: %v", what, err)
		}
		if b.Len() > 2*mostText {
			t.Errorf("%s: %d bytes of a tar", what, b.Len())
		}
	}
}

// TestADeepTreeIsMeasuredWhole: a container can make a tree that is deeper than any path, and as wide as it likes.
func TestADeepTreeIsMeasuredWhole(t *testing.T) {
	dir := t.TempDir()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	name := strings.Repeat("d", 250)
	for range 40 {
		must(t, unix.Mkdirat(at, name, 0o700))
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(at)
		at = next
	}
	fd, err := unix.Openat(at, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	must(t, err)
	_, err = unix.Write(fd, make([]byte, 1<<20))
	must(t, errors.Join(err, unix.Fsync(fd), unix.Close(fd), unix.Close(at)))
	bytes, inodes, err := Usage(context.Background(), dir)
	must(t, err)
	if bytes < 1<<20 || inodes != 42 {
		t.Errorf("%d bytes, %d inodes", bytes, inodes)
	}
	must(t, Remove(context.Background(), dir))
}
