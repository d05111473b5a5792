package checkpoint

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/jail/jailtest"
)

// made is a directory as a checkpoint is put together in.
func made(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	spec := &specs.Spec{Process: &specs.Process{Args: []string{"sh"}}, Root: &specs.Root{}, Linux: &specs.Linux{}}
	if err := os.Mkdir(filepath.Join(dir, ImagesDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteMetadata(dir, &Config{ID: "c", Name: "n", RootfsImageName: "i:1"}, spec,
		[]string{"/gone"}); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"checkpoint/descriptors.json": `["/dev/null","pipe:[1]","pipe:[2]"]`,
		"checkpoint/pages-1.img":      "pages", LogFile: "log",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func archived(t *testing.T, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.tar")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAnArchiveIsReadAsItWasWritten(t *testing.T) {
	var plainTar, zipped bytes.Buffer
	if err := Write(t.Context(), &plainTar, made(t)); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(plainTar.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if h, err := tar.NewReader(bytes.NewReader(plainTar.Bytes())).Next(); err != nil || h.Name != ConfigFile {
		t.Errorf("the first file is %v, %v", h, err)
	}
	for name, data := range map[string][]byte{"plain": plainTar.Bytes(), "gzip": zipped.Bytes()} {
		t.Run(name, func(t *testing.T) {
			file := archived(t, data)
			info, err := ReadArchive(t.Context(), jailtest.Jail(t), file)
			if err != nil || info.Config.Name != "n" || info.Spec.Process.Args[0] != "sh" || info.Streams[1] != "pipe:[1]" {
				t.Fatalf("%+v, %v", info, err)
			}
			dir := filepath.Join(t.TempDir(), "out")
			if err := Unpack(t.Context(), jailtest.Jail(t), file, dir, 1<<30); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(dir, "checkpoint/pages-1.img")); err != nil || string(b) != "pages" {
				t.Errorf("%q, %v", b, err)
			}
			if again, err := ReadDir(dir); err != nil || again.Config.ID != "c" {
				t.Errorf("unpacked: %+v, %v", again, err)
			}
		})
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

// The memory of a container is one file, and a stop of the container waits for its copy. Seen to fail with io.CopyN in
// writeFile, and with io.Copy in copyFile.
func TestACopyOfAFileEndsWithItsContext(t *testing.T) {
	const size = 4 << 30
	dir := made(t)
	if err := os.Truncate(filepath.Join(dir, "checkpoint/pages-1.img"), size); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	w := &stopper{stop: stop} // the file is the only one that is as large
	if err := Write(ctx, w, dir); !errors.Is(err, context.Canceled) || w.written >= size {
		t.Errorf("%d bytes were written, %v", w.written, err)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: the checkpoint of a pod has to be root's")
	}
	if err := Copy(ctx, dir, filepath.Join(t.TempDir(), "copy"), 1<<40); !errors.Is(err, context.Canceled) {
		t.Errorf("the copy: %v", err)
	}
}

func TestAnArchiveLeadsNowhereElse(t *testing.T) {
	for what, h := range map[string]tar.Header{
		"a link":              {Typeflag: tar.TypeSymlink, Name: "checkpoint/pages-1.img", Linkname: "/etc/shadow"},
		"a hard link":         {Typeflag: tar.TypeLink, Name: "config.dump", Linkname: "/etc/shadow"},
		"a device":            {Typeflag: tar.TypeBlock, Name: "checkpoint/x.img"},
		"a link for a parent": {Typeflag: tar.TypeSymlink, Name: "checkpoint", Linkname: "/etc"},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(&h), w.Close()); err != nil {
			t.Fatal(err)
		}
		if err := Unpack(t.Context(), jailtest.Jail(t), archived(t, b.Bytes()), filepath.Join(t.TempDir(), "out"),
			1<<30); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"../outside", "/abs", "checkpoint/../../outside", "volumes/v.tar"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	if err := Unpack(t.Context(), jailtest.Jail(t), archived(t, b.Bytes()), filepath.Join(top, "a", "out"),
		1<<30); err != nil {
		t.Fatal(err)
	}
	entries, _ := filepath.Glob(filepath.Join(top, "*"))
	more, _ := filepath.Glob(filepath.Join(top, "a", "*"))
	if len(entries) != 1 || len(more) != 1 {
		t.Errorf("outside there is %v, %v", entries, more)
	}
	dir := made(t)
	if err := os.Symlink("/etc/shadow", filepath.Join(dir, "checkpoint/core-1.img")); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadDir(dir); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a directory with a link: %v", err)
	}
}

// TestADirectoryLeadsNowhereElse: a layer of an image that says that it is a checkpoint is anybody's.
func TestADirectoryLeadsNowhereElse(t *testing.T) {
	outside := made(t)
	for what, change := range map[string]func(dir string) error{
		"a link in place of the images": func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, ImagesDir)),
				os.Symlink(filepath.Join(outside, ImagesDir), filepath.Join(dir, ImagesDir)))
		},
		"a file in place of the images": func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, ImagesDir)),
				os.WriteFile(filepath.Join(dir, ImagesDir), nil, 0o600))
		},
		"a link in place of a file": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, SpecFile)),
				os.Symlink(filepath.Join(outside, SpecFile), filepath.Join(dir, SpecFile)))
		},
		"a pipe in place of the deleted files": func(dir string) error {
			_ = os.Remove(filepath.Join(dir, DeletedFile))
			return unix.Mkfifo(filepath.Join(dir, DeletedFile), 0o600)
		},
		"a pipe in place of the writable layer": func(dir string) error {
			_ = os.Remove(filepath.Join(dir, DiffFile))
			return unix.Mkfifo(filepath.Join(dir, DiffFile), 0o600)
		},
		"a pipe": func(dir string) error { return unix.Mkfifo(filepath.Join(dir, ImagesDir, "pipe"), 0o600) },
		"a file without end": func(dir string) error {
			return os.Truncate(filepath.Join(dir, ConfigFile), 1<<40)
		},
	} {
		dir := made(t)
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadDir(dir); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
		// Not even where nobody has looked before.
		to := filepath.Join(t.TempDir(), "to")
		if err := Link(dir, to); err == nil {
			for _, name := range []string{SpecFile, "checkpoint/pages-1.img"} {
				a, errA := os.Stat(filepath.Join(outside, name))
				b, errB := os.Lstat(filepath.Join(to, name))
				if errA == nil && errB == nil && os.SameFile(a, b) {
					t.Errorf("%s: %s was taken from outside", what, name)
				}
			}
		}
	}
	dir := made(t)
	if err := os.Truncate(filepath.Join(dir, DeletedFile), 1<<40); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadDeleted(dir); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a list without end: %v", err)
	}
	if got, err := ReadDeleted(made(t)); err != nil || len(got) != 1 || got[0] != "/gone" {
		t.Errorf("deleted %v, %v", got, err)
	}
}

func TestTheHostnameIsReplaced(t *testing.T) {
	dir := made(t)
	entry := append([]byte{1<<3 | 2, 3}, "old"...)
	entry = append(append(entry, 2<<3|2, 6), "(none)"...)
	image := binary.LittleEndian.AppendUint32([]byte("12345678"), uint32(len(entry)))
	file := filepath.Join(dir, "checkpoint", "utsns-11.img")
	if err := os.WriteFile(file, append(image, entry...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SetHostname(dir, "a-longer-name"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(got), "a-longer-name") || strings.Contains(string(got), "old") ||
		!strings.Contains(string(got), "(none)") || binary.LittleEndian.Uint32(got[8:]) != uint32(len(got)-12) {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("123"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SetHostname(dir, "x"); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a broken image: %v", err)
	}
}

// The header of a sparse file says how large it is, and the archive need not have a byte of it. Seen to fail
// without the check in each: the archive of 3 KiB is a file of 1 GiB, and could be one of an exbibyte.
func TestSparseFilesAreRefused(t *testing.T) {
	record := func(key, value string) string {
		n := len(key) + len(value) + 3
		for len(fmt.Sprint(n))+len(key)+len(value)+3 != n {
			n = len(fmt.Sprint(n)) + len(key) + len(value) + 3
		}
		return fmt.Sprintf("%d %s=%s\n", n, key, value)
	}
	records := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name",
		"checkpoint/pages-1.img") +
		record("GNU.sparse.realsize", fmt.Sprint(1<<30))
	var b bytes.Buffer
	block := func(name string, kind byte, data []byte) {
		h := make([]byte, 512)
		copy(h, name)
		copy(h[100:], "0000600\x000000000\x000000000\x00")
		copy(h[124:], fmt.Sprintf("%011o\x0000000000000\x00        ", len(data)))
		h[156] = kind
		copy(h[257:], "ustar\x0000")
		sum := 0
		for _, c := range h {
			sum += int(c)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		b.Write(h)
		b.Write(data)
		b.Write(make([]byte, (512-len(data)%512)%512))
	}
	block("pax", 'x', []byte(records))
	sparse := make([]byte, 512)
	copy(sparse, "0\n") // no fragment has data
	block("checkpoint/GNUSparseFile.0/pages-1.img", '0', sparse)
	b.Write(make([]byte, 1024))
	if h, err := tar.NewReader(bytes.NewReader(b.Bytes())).Next(); err != nil || h.Size != 1<<30 {
		t.Fatalf("the archive is not what it should be: %+v, %v", h, err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if err := Unpack(t.Context(), jailtest.Jail(t), archived(t, b.Bytes()), out, 1<<40); !errors.Is(err,
		errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "sparse") {
		t.Errorf("%v", err)
	}
}

// A layer of an image may be a checkpoint, and its files as large as its author likes.
func TestFilesOfMetadataAreBounded(t *testing.T) {
	for name, read := range map[string]func(dir string) error{
		ConfigFile:                  func(dir string) error { _, err := ReadDir(dir); return err },
		DeletedFile:                 func(dir string) error { _, err := ReadDeleted(dir); return err },
		ImagesDir + "/utsns-11.img": func(dir string) error { return SetHostname(dir, "name") },
	} {
		dir := made(t)
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, 1<<40); err != nil {
			t.Fatal(err)
		}
		if err := read(dir); !errors.Is(err, errdefs.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), "1099511627776 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// IDs that do not fit are no user's.
func TestNumbersOfACheckpointAreNotCut(t *testing.T) {
	for _, uid := range []string{"4294967296", "-1", "1e99", "\"0\""} {
		dir := made(t)
		spec := `{"process":{"user":{"uid":` + uid + `,"gid":0}},"root":{},"linux":{}}`
		if err := os.WriteFile(filepath.Join(dir, SpecFile), []byte(spec), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadDir(dir); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), SpecFile) {
			t.Errorf("uid %s: %v", uid, err)
		}
	}
}

// TestAChildThatIsTakenOverLeadsNowhere: CRIU, and who reads the metadata, would follow what the child has left.
// Seen to fail without the look at the directory at the end of Unpack.
func TestAChildThatIsTakenOverLeadsNowhere(t *testing.T) {
	var b bytes.Buffer
	if err := Write(t.Context(), &b, made(t)); err != nil {
		t.Fatal(err)
	}
	jailtest.Jail(t) // skips where there can be none
	j, err := jailtest.New("berth/internal/jail/testdata/taken", "-ldflags", "-X main.attack=checkpoint-plants")
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	err = Unpack(t.Context(), j, archived(t, b.Bytes()), filepath.Join(t.TempDir(), "out"), 1<<30)
	if !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
}
