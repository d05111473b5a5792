package checkpoint

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/checkpoint/archive"
)

// FuzzArchive: whatever an archive holds, what is unpacked of it are regular files in its two directories,
// and nothing else on the file system changes. An archive is either the bytes as they are, or made of three entries,
// so that not every mutation ends at a checksum.
func FuzzArchive(f *testing.F) {
	asroot.Need(f, "chown")
	var good bytes.Buffer
	if err := Write(f.Context(), &good, made(f)); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes(), "", "", "", "", "", byte(0), byte(0), byte(0), []byte(nil))
	for _, packing := range []byte{1, 2} {
		f.Add([]byte(nil), ConfigFile, SpecFile, "checkpoint/descriptors.json", "", "", byte('0'), byte('0'),
			packing, []byte(`{}`))
	}
	f.Add([]byte(nil), "checkpoint", "checkpoint/x", "../canary", "/", "..", byte(tar.TypeSymlink), byte(tar.TypeReg),
		byte(0), []byte("x"))
	f.Add([]byte(nil), "config.dump", "config.dump", "checkpoint/../../canary", "../canary", "", byte(tar.TypeLink),
		byte(tar.TypeReg), byte(0), []byte("x"))
	f.Add([]byte(nil), "./checkpoint/utsns-1.img", "checkpoint/./utsns-2.img", "/config.dump", "", "", byte('0'),
		byte('7'), byte(0),
		append(binary.LittleEndian.AppendUint32([]byte("12345678"), 5), 10, 3, 'o', 'l', 'd'))
	f.Fuzz(func(t *testing.T, raw []byte, name1, name2, name3, link1, link2 string, type1,
		type2, packing byte, body []byte) {
		top, err := os.MkdirTemp("/dev/shm", "berth-fuzz-archive-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(top)
		for name, text := range map[string]string{"canary": "canary", "a/canary": "canary"} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(top, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if raw == nil {
			raw = packTar(name1, name2, name3, link1, link2, type1, type2, body)
		}
		file, out, linked := filepath.Join(top, "archive"), filepath.Join(top, "a/out"), filepath.Join(top, "a/linked")
		if err := os.WriteFile(file, pack(t, raw, packing), 0o600); err != nil {
			t.Fatal(err)
		}
		before := tree(t, top, out, linked)
		coded := func(what string, err error) bool {
			if err != nil && !errdefs.IsInvalidArgument(err) && !isName(err) {
				t.Errorf("%s: an error without a code: %v", what, err)
			}
			return err == nil
		}
		// In this process, where children are not waited for.
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if found, err := archive.Read(f); coded("read", err) {
			info, err := parse("checkpoint", func(name string) ([]byte, error) { return found[name], nil })
			if coded("parse", err) && (info.Spec.Process == nil || len(info.Streams) < 3) {
				t.Error("an archive that does not say what its container was")
			}
		}
		if err := os.MkdirAll(filepath.Join(out, ImagesDir), 0o700); err != nil {
			t.Fatal(err)
		}
		dir, err := os.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if coded("unpack", archive.Unpack(f, dir)) {
			_, err := ReadDir(out)
			coded("read the directory", err)
			_, err = ReadDeleted(out)
			coded("read what is deleted", err)
			coded("link", Link(out, linked))
			coded("set the host's name", SetHostname(linked, "name"))
		}
		for _, dir := range []string{out, linked} {
			_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					return nil
				}
				depth := strings.Count(strings.TrimPrefix(path, dir), "/")
				if d.IsDir() && path != dir && path != filepath.Join(dir, ImagesDir) ||
					!d.IsDir() && !d.Type().IsRegular() || depth > 2 {
					t.Errorf("%s is %v", path, d.Type())
				}
				return nil
			})
		}
		if after := tree(t, top, out, linked); after != before {
			t.Errorf("outside there was\n%s\nand is\n%s", before, after)
		}
	})
}

// isName: the names of an archive may be none that the kernel takes, or a file's and a directory's at once.
func isName(err error) bool {
	for _, known := range []error{unix.EINVAL, unix.ENAMETOOLONG, unix.EISDIR, unix.EEXIST} {
		if strings.Contains(err.Error(), known.Error()) {
			return true
		}
	}
	return false
}

func packTar(name1, name2, name3, link1, link2 string, type1, type2 byte, body []byte) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: name1, Typeflag: type1, Linkname: link1}, {Name: name2, Typeflag: type2, Linkname: link2},
		{Name: name3, Typeflag: tar.TypeReg},
	} {
		h.Mode = 0o4777
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if w.WriteHeader(&h) == nil && h.Size > 0 {
			_, _ = w.Write(body)
		}
	}
	_ = w.Close()
	return b.Bytes()
}

func pack(t *testing.T, raw []byte, packing byte) []byte {
	var b bytes.Buffer
	switch packing {
	case 1:
		z := gzip.NewWriter(&b)
		_, _ = z.Write(raw)
		_ = z.Close()
	case 2:
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = z.Write(raw)
		_ = z.Close()
	default:
		return raw
	}
	return b.Bytes()
}

// tree is all below a directory but what is unpacked.
func tree(t *testing.T, top string, but ...string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, dir := range but {
			if path == dir {
				return fs.SkipDir
			}
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(b)
		}
		lines = append(lines, fmt.Sprintf("%s %v %q", path, info.Mode(), text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}
