package variant

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/dirtree"
	"berth/internal/fileattr"
	"berth/internal/image/unpack"
	rt "berth/internal/registrytest"
)

// script makes the entries of layers from bytes. Names come from a small alphabet, so that layers, links and files
// meet.
type script struct {
	bytes []byte
	files []string // of this layer, for hard links
	n     int      // of files, whose contents differ
}

func (s *script) next() byte {
	if len(s.bytes) == 0 {
		return 0
	}
	b := s.bytes[0]
	s.bytes = s.bytes[1:]
	return b
}

// path takes one byte for a path of one to three components.
func (s *script) path() string {
	b := s.next()
	names := []string{string('a' + rune(b&3))}
	if b&4 != 0 {
		names = append(names, string('a'+rune(b>>3&3)))
	}
	if b&32 != 0 {
		names = append(names, string('a'+rune(b>>6&3)))
	}
	return strings.Join(names, "/")
}

// file is a path that seldom has a name which directories have.
func (s *script) file() string {
	p, b := s.path(), s.next()
	if b&7 != 0 {
		p = path.Join(path.Dir(p), string('x'+rune(b>>3&1)))
	}
	s.files = append(s.files, p)
	return p
}

func (s *script) fileBefore() string {
	if b := s.next(); b&15 != 0 {
		return s.files[int(b>>4)%len(s.files)]
	}
	return s.path()
}

func (s *script) target() string {
	switch b := s.next(); b & 7 {
	case 0, 1:
		return "/" + s.path()
	case 2:
		return "../" + s.path()
	case 3:
		return s.path() + "/.."
	case 4:
		return path.Dir(s.path()) + "/../" + s.path()
	case 5:
		return "/"
	default:
		return s.path()
	}
}

func (s *script) attributes(e rt.Entry) rt.Entry {
	b := s.next()
	e.Mode = []int64{0o755, 0o700, 0o1777, 0o750}[b&3]
	return e.Owned(int(b>>2&1), int(b>>3&1))
}

func (s *script) entry() rt.Entry {
	kind := s.next() % 12
	if kind == 8 && len(s.files) == 0 {
		kind = 2
	}
	switch kind {
	case 0, 1:
		return s.attributes(rt.Dir(s.path(), 0))
	case 2, 3, 4:
		s.n++
		return s.attributes(rt.File(s.file(), 0, strconv.Itoa(s.n)))
	case 5, 6, 7:
		return rt.Symlink(s.path(), s.target())
	case 8:
		target := s.fileBefore()
		return rt.Hardlink(s.file(), target)
	case 9:
		if s.next()&1 == 0 {
			return rt.Whiteout(s.file())
		}
		return rt.Whiteout(s.path())
	case 10:
		return rt.Opaque(s.path())
	default:
		switch s.next() & 3 {
		case 0, 2:
			return rt.Opaque(".")
		case 3:
			return s.attributes(rt.Dir(".", 0))
		}
		return rt.Device(s.path(), tar.TypeChar, 0, 0)
	}
}

// layers are two or three, of up to a dozen entries each.
func (s *script) layers() [][]rt.Entry {
	out := make([][]rt.Entry, 2+s.next()&1)
	for i := range out {
		s.files = nil
		for range s.next() % 13 {
			if len(s.bytes) == 0 {
				break
			}
			out[i] = append(out[i], s.entry())
		}
	}
	return out
}

// stacked unpacks layers, makes the variants that they need, and returns the directories for overlayfs, top first.
func stacked(t testing.TB, top string, layers [][]rt.Entry) ([]string, error) {
	t.Helper()
	var dirs []string // top first
	for i, entries := range layers {
		data, err := rt.Tar(entries...)
		if err != nil {
			t.Skip(err)
		}
		home := filepath.Join(top, strconv.Itoa(i))
		fs := filepath.Join(home, "fs")
		if err := os.MkdirAll(fs, 0o755); err != nil {
			t.Fatal(err)
		}
		root := open(t, fs)
		result, err := unpack.Layer(context.Background(), root, bytes.NewReader(data), unpack.Limits{}, unpack.Calls{})
		if err != nil {
			root.Close()
			return nil, err
		}
		before := list(t, root)
		r := Request{Layer: root, Implied: result.Implied, Home: open(t, home), Name: "variant", Xattrs: fileattr.System}
		var below []*os.File
		for _, d := range dirs {
			below = append(below, open(t, d))
		}
		var made *Result
		if i > 0 {
			var takes bool
			if takes, err = TakesRoot(fs, dirs[0]); err != nil {
				t.Fatal(err)
			}
			made, err = all(context.Background(), r, takes && !result.OwnRoot, below)
		}
		if after := list(t, root); after != before {
			t.Errorf("the layer was\n%s\nand is\n%s", before, after)
		}
		for _, f := range append(below, r.Layer, r.Home) {
			f.Close()
		}
		if err != nil {
			return nil, err
		}
		if made != nil {
			fs = filepath.Join(home, "variant")
		}
		if result.OpaqueRoot {
			dirs = nil
		}
		dirs = append([]string{fs}, dirs...)
	}
	return dirs, nil
}

// all does what three processes do, one after the other; no result: the layer is right as it is. What one of them says
// passes as JSON.
func all(ctx context.Context, r Request, takesRoot bool, below []*os.File) (*Result, error) {
	p, err := Plan(ctx, r.Implied, takesRoot, below, 0, fileattr.System)
	if err != nil || !p.Needed {
		return nil, err
	}
	data, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	r.Placement = &Placement{}
	if err := json.Unmarshal(data, r.Placement); err != nil {
		return nil, err
	}
	r.Xattrs = fileattr.System
	result, err := Make(ctx, r)
	if err != nil || !p.Moved {
		return result, err
	}
	made, err := os.Open(filepath.Join(r.Home.Name(), r.Name))
	if err != nil {
		return nil, err
	}
	defer made.Close()
	return result, Check(ctx, r.Implied, made, below, fileattr.System)
}

func open(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// overlay shows directories as the kernel does. The mount is nowhere, and goes with the file.
func overlay(t testing.TB, top string, dirs []string) *os.File {
	t.Helper()
	empty := filepath.Join(top, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	short := make([]string, 0, len(dirs)+2)
	for _, d := range append(slices.Clone(dirs), empty) {
		f := open(t, d)
		defer f.Close()
		short = append(short, fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	}
	for _, option := range [][2]string{{"lowerdir", strings.Join(short, ":")}, {"index", "off"}, {"metacopy", "off"},
		{"redirect_dir", "nofollow"}} {
		if err := unix.FsconfigSetString(fd, option[0], option[1]); err != nil {
			t.Fatal(option, err)
		}
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		t.Fatal(err)
	}
	mnt, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mnt)
	root, err := unix.Openat(mnt, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(root), "overlay")
}

var tarType = map[uint32]byte{
	unix.S_IFDIR: tar.TypeDir, unix.S_IFREG: tar.TypeReg, unix.S_IFLNK: tar.TypeSymlink, unix.S_IFCHR: tar.TypeChar,
}

// list prints a tree as a model prints itself.
func list(t testing.TB, root *os.File) string {
	t.Helper()
	type dir = dirtree.Dir[*object]
	tree := dirtree.New[*object](root)
	defer tree.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	top := &object{mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid, names: map[string]*name{}}
	tree.Root().Data = top
	// A directory that only one layer has shows the names of its whiteouts to those who list it, and nothing under them.
	err := tree.Walk(context.Background(),
		dirtree.Walk[*object]{Changing: true, Visit: func(in *dir, fd int, base string, st *unix.Stat_t) (*dir, error) {
			o := &object{kind: tarType[st.Mode&unix.S_IFMT], mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid}
			in.Data.names[base] = &name{object: o}
			switch o.kind {
			case tar.TypeReg:
				f, err := unix.Openat(fd, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
				if err != nil {
					return nil, err
				}
				file := os.NewFile(uintptr(f), base)
				defer file.Close()
				data, err := io.ReadAll(file)
				o.text = string(data)
				return nil, err
			case tar.TypeSymlink:
				var err error
				o.text, err = readlink(fd, base)
				return nil, err
			case tar.TypeDir:
				o.names = map[string]*name{}
				sub := in.Below(base)
				sub.Data = o
				return sub, nil
			}
			return nil, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	top.printAll(&out)
	return out.String()
}

// check compares what the kernel shows of layers with the model, and looks after what stands beside them.
// It returns the error with which the layers were refused.
func check(t testing.TB, top string, layers [][]rt.Entry) error {
	t.Helper()
	bait := filepath.Join(top, "bait")
	if err := os.MkdirAll(filepath.Join(bait, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bait, "a/b"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := newModel()
	var want error
	for _, l := range layers {
		if want = m.apply(l); want != nil {
			break
		}
	}
	dirs, err := stacked(t, top, layers)
	if data, e := os.ReadFile(filepath.Join(bait, "a/b")); e != nil || string(data) != "secret" {
		t.Errorf("beside the layers: %q, %v", data, e)
	}
	if entries, e := os.ReadDir(filepath.Join(bait, "a")); e != nil || len(entries) != 1 {
		t.Errorf("beside the layers: %v, %v", entries, e)
	}
	if err != nil {
		if !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("error %v, want an invalid argument", err)
		}
		return err
	}
	if want != nil {
		t.Errorf("this was taken, though: %v", want)
		return nil
	}
	root := overlay(t, top, dirs)
	defer root.Close()
	got := list(t, root)
	var out strings.Builder
	m.root.printAll(&out)
	if got != out.String() {
		t.Errorf("the kernel shows\n%s\nand the model\n%s", got, out.String())
	}
	return nil
}

func describe(layers [][]rt.Entry) string {
	var out strings.Builder
	for i, l := range layers {
		fmt.Fprintf(&out, "layer %d\n", i)
		for _, e := range l {
			fmt.Fprintf(&out, "  %s %c %o %s\n", e.Name, e.Typeflag, e.Mode, e.Linkname)
		}
	}
	return out.String()
}

// seeds is how many scripts an ordinary test run tries.
const seeds = 200

func randomScript(random *rand.Rand) []byte {
	data := make([]byte, 20+random.IntN(100))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return data
}

// FuzzVariant stacks two or three layers that were made to collide.
func FuzzVariant(f *testing.F) {
	asroot.Need(f, "chown")
	random := rand.New(rand.NewPCG(1, 2))
	for range seeds {
		f.Add(randomScript(random))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 256 {
			return
		}
		top, err := os.MkdirTemp("/dev/shm", "berth-fuzz-")
		if err != nil {
			t.Skip(err)
		}
		defer os.RemoveAll(top)
		s := script{bytes: data}
		layers := s.layers()
		err = check(t, top, layers)
		if t.Failed() {
			t.Logf("%s%v", describe(layers), err)
		}
	})
}
