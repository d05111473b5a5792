package checkpoint

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// made is a directory as a checkpoint is put together in.
func made(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	spec := &specs.Spec{Process: &specs.Process{Args: []string{"sh"}}, Root: &specs.Root{}, Linux: &specs.Linux{}}
	if err := os.Mkdir(filepath.Join(dir, ImagesDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteMetadata(dir, &Config{ID: "c", Name: "n", RootfsImageName: "i:1"}, spec, []string{"/gone"}); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"checkpoint/descriptors.json": `["/dev/null","pipe:[1]","pipe:[2]"]`, "checkpoint/pages-1.img": "pages", LogFile: "log",
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
			info, err := ReadArchive(t.Context(), file)
			if err != nil || info.Config.Name != "n" || info.Spec.Process.Args[0] != "sh" || info.Streams[1] != "pipe:[1]" {
				t.Fatalf("%+v, %v", info, err)
			}
			dir := filepath.Join(t.TempDir(), "out")
			if err := Unpack(t.Context(), file, dir); err != nil {
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
		if err := Unpack(t.Context(), archived(t, b.Bytes()), filepath.Join(t.TempDir(), "out")); !errors.Is(err, errdefs.ErrInvalidArgument) {
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
	if err := Unpack(t.Context(), archived(t, b.Bytes()), filepath.Join(top, "a", "out")); err != nil {
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
