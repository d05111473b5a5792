package layertar_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/image/layertar"
	"berth/internal/image/unpack"
	rt "berth/internal/registrytest"
)

// unpacked unpacks a tar as a layer's child does, and returns its directory and the record.
func unpacked(t *testing.T, data []byte, limit uint64) (root, record *os.File) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	record, err = os.Create(filepath.Join(t.TempDir(), layertar.FileName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { record.Close() })
	recorder, err := layertar.NewRecorder(record, limit)
	if err != nil {
		t.Fatal(err)
	}
	calls := unpack.Calls{}
	if os.Geteuid() != 0 {
		calls.Chown = func(int, string, int, int) error { return nil }
		calls.SetXattr = func(int, string, []byte) error { return nil }
	}
	ctx := context.Background()
	in := unpack.Bound(ctx, bytes.NewReader(data), unpack.Limits{}, recorder)
	if _, err := unpack.Layer(ctx, root, in, unpack.Limits{}, calls); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Fatal(err)
	}
	if err := recorder.Finish(); err != nil {
		t.Fatal(err)
	}
	return root, record
}

func mustTar(t *testing.T, entries ...rt.Entry) []byte {
	t.Helper()
	data, err := rt.Tar(entries...)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func random(n int) string {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return string(b)
}

func manyFiles() []rt.Entry {
	var list []rt.Entry
	n := 10000
	if testing.Short() {
		n = 1500
	}
	for i := range n {
		list = append(list, rt.File(fmt.Sprintf("many/%d/%d", i%100, i), 0o644, strings.Repeat("x", i%600)))
	}
	return list
}

// sparse is a tar with files with holes, as GNU tar writes it.
func sparse(t *testing.T, format ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []int64{0, 5 << 20, 9<<20 + 7} {
		if _, err := f.WriteAt([]byte(random(5000)), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "plain"), []byte(random(9000)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tar", append(format, "--sparse", "--owner=0", "--group=0", "-C", dir, "-c", "holes",
		"plain")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTheTarOfALayerIsMadeAgainByteForByte(t *testing.T) {
	nul := rt.File("nul", 0o644, "x")
	nul.Header.PAXRecords = map[string]string{"SCHILY.xattr.user.nul": "a\x00b\n=c"}
	aufs := rt.File(".wh..wh.plnk/1.2", 0o644, random(70000)) // skipped by the unpacking, with its content
	cases := map[string][]byte{
		"no entry": mustTar(t),
		"no bytes": {},
		"files":    mustTar(t, rt.Dir("d", 0o750), rt.File("d/empty", 0o600, ""), rt.File("d/f", 0o4755, random(1<<20+3))),
		"names": mustTar(t, rt.File("new\nline", 0o644, "x"), rt.File("d/\xff\x01", 0o644, "y"),
			rt.File("./a//b/./c", 0o644, "z")),
		"long name": mustTar(t, rt.File(strings.Repeat("long/", 300)+strings.Repeat("n", 250), 0o644, random(3000))),
		"deep":      mustTar(t, rt.File(strings.Repeat("d/", 1900)+strings.Repeat("n", 250), 0o644, "deep")),
		"links": mustTar(t, rt.File("a/f", 0o644, "one"), rt.Hardlink("b/g", "a/f"), rt.Symlink("l", "a"),
			rt.File("l/through", 0o644, "content that the link leads to a")),
		"whiteouts": mustTar(t, rt.Whiteout("d/gone"), rt.Opaque("o"), rt.File("o/new", 0o644, "x"), rt.Whiteout("w"),
			rt.File("w/f", 0o644, "in place of a whiteout")),
		"directory twice": mustTar(t, rt.Dir("d", 0o700), rt.File("d/f", 0o644, "x"), rt.Dir("d", 0o755)),
		"link replaced":   mustTar(t, rt.Symlink("f", "elsewhere"), rt.File("f", 0o644, "x")),
		"attributes":      mustTar(t, nul),
		"skipped":         mustTar(t, aufs, rt.File("f", 0o644, "x")),
		"behind the end":  append(mustTar(t, rt.File("f", 0o644, "x")), []byte(random(300000))...),
		"many":            mustTar(t, manyFiles()...),
		"sparse":          sparse(t, "--format=gnu"),
		"sparse 1.0":      sparse(t, "--format=pax", "--sparse-version=1.0"),
		"sparse 0.1":      sparse(t, "--format=pax", "--sparse-version=0.1"),
	}
	if os.Geteuid() == 0 {
		cases["devices"] = mustTar(t, rt.Device("null", tar.TypeChar, 1, 3), rt.Device("disk", tar.TypeBlock, 8, 1),
			rt.Device("fifo", tar.TypeFifo, 0, 0), rt.Device("gone", tar.TypeChar, 0, 0), rt.File("f", 0o000, "x").Owned(12, 34))
	}
	for what, data := range cases {
		t.Run(what, func(t *testing.T) {
			root, record := unpacked(t, data, 0)
			head, err := layertar.ReadHead(record)
			if err != nil || head.Problem() != "" || head.Length != int64(len(data)) {
				t.Fatalf("%+v, %v: the tar has %d bytes", head, err, len(data))
			}
			var out bytes.Buffer
			if err := layertar.Rebuild(root, record, &out); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out.Bytes(), data) {
				t.Errorf("%d bytes were made again, which are not the %d of the tar", out.Len(), len(data))
			}
		})
	}
}

func TestATarThatCannotBeMadeAgainIsKnownAtOnce(t *testing.T) {
	for what, c := range map[string]struct {
		data  []byte
		limit uint64
		state layertar.State
	}{
		"a file twice":        {mustTar(t, rt.File("f", 0o644, "x"), rt.File("f", 0o644, "y")), 0, layertar.Replaced},
		"a file for a link":   {mustTar(t, rt.File("f", 0o644, "x"), rt.Symlink("f", "y")), 0, layertar.Replaced},
		"a file for a dir":    {mustTar(t, rt.File("d/f", 0o644, "x"), rt.File("d", 0o644, "y")), 0, layertar.Replaced},
		"more than its limit": {append(mustTar(t), []byte(random(200000))...), 100000, layertar.TooLarge},
	} {
		_, record := unpacked(t, c.data, c.limit)
		head, err := layertar.ReadHead(record)
		if err != nil || head.State != c.state || head.Problem() == "" {
			t.Errorf("%s: %+v, %v", what, head, err)
		}
		if info, err := record.Stat(); err != nil || info.Size() > 100 {
			t.Errorf("%s: the record has %d bytes, %v", what, info.Size(), err)
		}
	}
}

// A record may come from a child that its layer has taken over.
func TestARecordLeadsNowhereElse(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ name, make string }{
		"absolute":       {outside, ""},
		"up":             {"../" + filepath.Base(filepath.Dir(outside)) + "/secret", ""},
		"a link":         {"link", "link"},
		"a link on way":  {"dir/secret", "dir"},
		"a device":       {"fifo", "fifo"},
		"no name":        {"", ""},
		"what is absent": {"absent/f", ""},
	} {
		dir := t.TempDir()
		switch c.make {
		case "link":
			_ = os.Symlink(outside, filepath.Join(dir, "link"))
		case "dir":
			_ = os.Symlink(filepath.Dir(outside), filepath.Join(dir, "dir"))
		case "fifo":
			_ = unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)
		}
		root, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		record, err := os.Create(filepath.Join(t.TempDir(), "record"))
		if err != nil {
			t.Fatal(err)
		}
		recorder, err := layertar.NewRecorder(record, 0)
		if err != nil {
			t.Fatal(err)
		}
		recorder.File(c.name, 6)
		if err := recorder.Finish(); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = layertar.Rebuild(root, record, &out)
		var errno unix.Errno
		if err == nil || out.Len() > 0 || !errors.Is(err, errdefs.ErrFailedPrecondition) && !errors.As(err, &errno) {
			t.Errorf("%s: %v, and %q comes out", what, err, out.String())
		}
		root.Close()
		record.Close()
	}
}

func FuzzRebuild(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("bxyz"))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		record, err := os.Create(filepath.Join(t.TempDir(), "record"))
		if err != nil {
			t.Fatal(err)
		}
		defer record.Close()
		if _, err := record.Write(data); err != nil {
			t.Fatal(err)
		}
		_, _ = layertar.ReadHead(record)
		_ = layertar.Rebuild(root, record, io.Discard)
	})
}
