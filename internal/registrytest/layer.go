package registrytest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Entry is one entry of a layer's tar, written as it is: a test may say anything in it.
type Entry struct {
	tar.Header
	Body []byte
}

// Epoch is the modification time of the entries that the helpers below make.
var Epoch = time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)

func entry(kind byte, name string, mode int64) Entry {
	return Entry{Header: tar.Header{Typeflag: kind, Name: name, Mode: mode, ModTime: Epoch}}
}

// File is a regular file.
func File(name string, mode int64, body string) Entry {
	e := entry(tar.TypeReg, name, mode)
	e.Body = []byte(body)
	return e
}

// Dir is a directory.
func Dir(name string, mode int64) Entry {
	return entry(tar.TypeDir, strings.TrimSuffix(name, "/")+"/", mode)
}

// Symlink is a symbolic link.
func Symlink(name, target string) Entry {
	e := entry(tar.TypeSymlink, name, 0o777)
	e.Linkname = target
	return e
}

// Hardlink is a further name of an entry.
func Hardlink(name, target string) Entry {
	e := entry(tar.TypeLink, name, 0o644)
	e.Linkname = target
	return e
}

// Device is a device node: tar.TypeChar, tar.TypeBlock or tar.TypeFifo.
func Device(name string, kind byte, major, minor int64) Entry {
	e := entry(kind, name, 0o600)
	e.Devmajor, e.Devminor = major, minor
	return e
}

// Whiteout removes what lower layers have under name.
func Whiteout(name string) Entry {
	dir, base := path.Split(name)
	return entry(tar.TypeReg, dir+".wh."+base, 0o644)
}

// Opaque hides what lower layers have in a directory.
func Opaque(dir string) Entry { return entry(tar.TypeReg, path.Join(dir, ".wh..wh..opq"), 0o644) }

// Owned gives an entry an owner.
func (e Entry) Owned(uid, gid int) Entry {
	e.Uid, e.Gid = uid, gid
	return e
}

// Xattr gives an entry an extended attribute.
func (e Entry) Xattr(key, value string) Entry {
	records := map[string]string{"SCHILY.xattr." + key: value}
	for k, v := range e.PAXRecords {
		records[k] = v
	}
	e.PAXRecords = records
	e.Format = tar.FormatPAX
	return e
}

// Tar writes entries as a tar.
func Tar(entries ...Entry) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.Body))
		if err := w.WriteHeader(&h); err != nil {
			return nil, fmt.Errorf("tar entry %s: %w", h.Name, err)
		}
		if _, err := w.Write(e.Body); err != nil {
			return nil, fmt.Errorf("tar entry %s: %w", h.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// Checksummed gives all headers of a tar the checksums of their bytes, so that one that a fuzzer has changed is read.
func Checksummed(data []byte) []byte {
	const block = 512
	data = bytes.Clone(data)
	for at := 0; at+block <= len(data); {
		h := data[at : at+block]
		sum := 8 * int(' ')
		for i, b := range h {
			if i < 148 || i >= 156 {
				sum += int(b)
			}
		}
		if sum > 8*int(' ') { // not the end
			copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		}
		at += block
		size, err := strconv.ParseInt(strings.Trim(string(h[124:136]), " \x00"), 8, 64)
		if err == nil && size > 0 && size < int64(len(data)) {
			at += int(size+block-1) / block * block
		}
	}
	return data
}

// Files are regular files (and the directories that they need, with mode 0755) from a map of names and contents.
func Files(files map[string]string) []Entry {
	var out []Entry
	made := map[string]bool{".": true}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		out = append(out, parents(name, made)...)
		out = append(out, File(name, 0o644, files[name]))
	}
	return out
}

func parents(name string, made map[string]bool) []Entry {
	var out []Entry
	for dir := path.Dir(path.Clean(name)); !made[dir] && dir != "/"; dir = path.Dir(dir) {
		made[dir] = true
		out = append(out, Dir(dir, 0o755))
	}
	slices.Reverse(out)
	return out
}

// Busybox is a root file system around Debian's /bin/busybox (package busybox-static): its applets as links, a few
// files in /etc, and the usual directories.
func Busybox() ([]Entry, error) {
	const program = "/bin/busybox"
	body, err := os.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("busybox image needs the package busybox-static: %w", err)
	}
	list, err := exec.Command(program, "--list-full").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list-full: %w", program, err)
	}
	var out []Entry
	for _, d := range []string{"bin", "dev", "etc", "home", "lib", "proc", "root", "run", "sbin", "sys", "usr", "usr/bin",
		"usr/sbin", "var", "var/log", "var/run", "var/spool", "var/www"} {
		out = append(out, Dir(d, 0o755))
	}
	out = append(out, Dir("tmp", 0o1777), Dir("var/tmp", 0o1777),
		File("bin/busybox", 0o755, string(body)))
	for _, applet := range strings.Fields(string(list)) {
		if applet != "bin/busybox" && !strings.HasPrefix(applet, "linuxrc") {
			link := Hardlink(applet, "bin/busybox")
			link.Mode = 0o755 // some give a file the mode of the last of its names
			out = append(out, link)
		}
	}
	out = append(out,
		File("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\n"+
			"www-data:x:33:33:www-data:/var/www:/bin/false\nuser:x:1000:1000:user:/home:/bin/sh\n"+
			"nobody:x:65534:65534:nobody:/home:/bin/false\n"),
		File("etc/group", 0o644, "root:x:0:\ndaemon:x:1:\nwww-data:x:33:\nusers:x:100:\nuser:x:1000:\nnogroup:x:65534:\n"),
		File("etc/shadow", 0o640, "root:*:::::::\n"),
		File("etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files dns\n"),
	)
	return out, nil
}

// Random are n files under dir with size bytes in all, which gzip makes about three times smaller. The same seed gives
// the same bytes.
func Random(seed int64, dir string, n int, size int64) []Entry {
	rnd := rand.New(rand.NewSource(seed))
	words := make([][]byte, 4096)
	for i := range words {
		words[i] = make([]byte, 3+rnd.Intn(12))
		rnd.Read(words[i])
	}
	out := []Entry{Dir(dir, 0o755)}
	for i := range n {
		want := int(size / int64(n))
		body := make([]byte, 0, want+16)
		for len(body) < want {
			body = append(body, words[rnd.Intn(len(words))]...)
		}
		e := entry(tar.TypeReg, fmt.Sprintf("%s/%05d", dir, i), 0o644)
		e.Body = body[:want]
		out = append(out, e)
	}
	return out
}

// Compression is how a layer's tar is packed.
type Compression string

const (
	Gzip         Compression = "gzip"
	Zstd         Compression = "zstd"
	Uncompressed Compression = "none"
)

// layer is a layer whose bytes are at hand.
type layer struct {
	plain, packed  []byte
	diffID, digest v1.Hash
	mediaType      types.MediaType
}

// NewLayer packs a tar. What plain holds is not looked at: a layer need not be a tar.
func NewLayer(plain []byte, c Compression, docker bool) (v1.Layer, error) {
	l := &layer{plain: plain, packed: plain}
	var buf bytes.Buffer
	switch c {
	case Gzip, "":
		w, err := gzip.NewWriterLevel(&buf, gzip.DefaultCompression)
		if err != nil {
			return nil, err
		}
		if err := writeAll(w, plain); err != nil {
			return nil, err
		}
		l.packed, l.mediaType = buf.Bytes(), types.OCILayer
		if docker {
			l.mediaType = types.DockerLayer
		}
	case Zstd:
		w, err := zstd.NewWriter(&buf)
		if err != nil {
			return nil, err
		}
		if err := writeAll(w, plain); err != nil {
			return nil, err
		}
		l.packed, l.mediaType = buf.Bytes(), types.OCILayerZStd
		if docker {
			l.mediaType = "application/vnd.docker.image.rootfs.diff.tar.zstd"
		}
	case Uncompressed:
		l.mediaType = types.OCIUncompressedLayer
		if docker {
			l.mediaType = types.DockerUncompressedLayer
		}
	default:
		return nil, fmt.Errorf("unknown compression %q", c)
	}
	l.diffID, l.digest = hash(l.plain), hash(l.packed)
	return l, nil
}

func writeAll(w io.WriteCloser, data []byte) error {
	if _, err := w.Write(data); err != nil {
		return err
	}
	return w.Close()
}

func hash(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

func (l *layer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *layer) Size() (int64, error)                { return int64(len(l.packed)), nil }
func (l *layer) MediaType() (types.MediaType, error) { return l.mediaType, nil }
func (l *layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.packed)), nil
}
func (l *layer) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.plain)), nil
}
