package filecopy

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// archived is a tar archive of these entries. The content of a file is its name's.
func archived(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, header := range entries {
		content := ""
		if header.Typeflag == tar.TypeReg {
			content = header.Name
		}
		header.Size = int64(len(content))
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &archive
}

// TestATreeGoesThroughAnArchive out of a container and into another one, with modes, links and holes, without setuid
// bits, and without what is no file.
func TestATreeGoesThroughAnArchive(t *testing.T) {
	from, root, _ := rooted(t)
	put(t, filepath.Join(root, "d/e/f"), "text")
	put(t, filepath.Join(root, "d/"+strings.Repeat("long", 60)), "")
	link(t, "/etc/shadow", filepath.Join(root, "d/link"))
	if err := os.Chmod(filepath.Join(root, "d/e"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chmod(filepath.Join(root, "d/e/f"), 0o4755); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(root, "d/e/f"), 100_000); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(root, "d/fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	for source, top := range map[string]string{"/d": "d", "/d/.": "."} {
		var archive bytes.Buffer
		var skipped []string
		err := WriteTar(t.Context(), from, source, &archive, func(path, _ string) { skipped = append(skipped, path) })
		if err == nil || !strings.Contains(err.Error(), "1 entries") || len(skipped) != 1 ||
			!strings.HasSuffix(skipped[0], "/fifo") {
			t.Errorf("%s: %v, skipped are %q", source, err, skipped)
		}
		to, taken, _ := rooted(t)
		if err := ReadTar(t.Context(), &archive, to, "/", none(t)); err != nil {
			t.Fatal(err)
		}
		taken = filepath.Join(taken, top)
		info, err := os.Stat(filepath.Join(taken, "e/f"))
		if err != nil || info.Mode() != 0o755 || info.Size() != 100_000 {
			t.Errorf("%s: the file is %v, %v", source, info, err)
		}
		if text := read(t, filepath.Join(taken, "e/f")); strings.TrimRight(text, "\x00") != "text" {
			t.Errorf("%s: the file is %.10q", source, text)
		}
		if info, err = os.Stat(filepath.Join(taken, "e")); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: the directory is %v, %v", source, info, err)
		}
		if target, err := os.Readlink(filepath.Join(taken, "link")); err != nil || target != "/etc/shadow" {
			t.Errorf("%s: the link is %q, %v", source, target, err)
		}
		if _, err := os.Stat(filepath.Join(taken, strings.Repeat("long", 60))); err != nil {
			t.Error(err)
		}
	}
}

// TestNoArchiveLeavesTheRoot, whatever links the container has or the archive brings. Seen to fail without O_NOFOLLOW
// in subdirectory, where ".." is taken for a name, and where a hard link may be to any file.
func TestNoArchiveLeavesTheRoot(t *testing.T) {
	to, root, outside := rooted(t)
	put(t, filepath.Join(outside, "secret"), "secret")
	put(t, filepath.Join(root, "own"), "own")
	link(t, outside, filepath.Join(root, "way"))
	link(t, filepath.Join(outside, "secret"), filepath.Join(root, "file"))
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	for what, c := range map[string]struct {
		entries []tar.Header
		says    string
	}{
		"a link of the container": {[]tar.Header{file("way/x")}, "symbolic link"},
		"a link to a file":        {[]tar.Header{file("file")}, "symbolic link"},
		"a link of the archive": {[]tar.Header{{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}, file("l/x")},
			"symbolic link"},
		"up":                      {[]tar.Header{file("../outside/x")}, `".."`},
		"up in the middle":        {[]tar.Header{file("a/../../outside/x")}, `".."`},
		"a hard link up":          {[]tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "../own"}}, `".."`},
		"a hard link to another":  {[]tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "own"}}, "has brought"},
		"a hard link to nothing":  {[]tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "."}}, "has brought"},
		"a file that is the root": {[]tar.Header{file(".")}, "no name of a file"},
	} {
		err := ReadTar(t.Context(), archived(t, c.entries...), to, "/", none(t))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	left, err := os.ReadDir(outside)
	if err != nil || len(left) != 1 || read(t, filepath.Join(outside, "secret")) != "secret" {
		t.Errorf("outside are %v, %v", left, err)
	}
}

// TestAnArchiveIsTakenAsATarProgramTakesIt: missing directories are made, "/" at the beginning does not count, what is
// there is replaced, and hard links within the archive are links.
func TestAnArchiveIsTakenAsATarProgramTakesIt(t *testing.T) {
	to, root, _ := rooted(t)
	put(t, filepath.Join(root, "in/a/f"), "something that is longer")
	var skipped []string
	err := ReadTar(t.Context(), archived(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700},
		tar.Header{Typeflag: tar.TypeReg, Name: "/a/f", Mode: 0o600},
		tar.Header{Typeflag: tar.TypeReg, Name: "./new/dir/f", Mode: 0o640},
		tar.Header{Typeflag: tar.TypeLink, Name: "again", Linkname: "./new/dir/f"},
		tar.Header{Typeflag: tar.TypeLink, Name: "again", Linkname: "new/dir/f"},
		tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666, Devmajor: 1, Devminor: 3},
	), to, "/in", func(path, _ string) { skipped = append(skipped, path) })
	if err == nil || !strings.Contains(err.Error(), "1 entries") || len(skipped) != 1 || skipped[0] != "null" {
		t.Errorf("%v, skipped are %q", err, skipped)
	}
	in := filepath.Join(root, "in")
	if read(t, filepath.Join(in, "a/f")) != "/a/f" || read(t, filepath.Join(in, "new/dir/f")) != "./new/dir/f" {
		t.Error("the files are not those of the archive")
	}
	one, err := os.Stat(filepath.Join(in, "new/dir/f"))
	if err != nil {
		t.Fatal(err)
	}
	if other, err := os.Stat(filepath.Join(in, "again")); err != nil || !os.SameFile(one, other) {
		t.Errorf("the hard link is another file: %v", err)
	}
	if info, err := os.Stat(in); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory that takes the entries is %v, %v", info, err)
	}
	for input, says := range map[string]string{"": "is empty", strings.Repeat("no archive ", 100): "read the archive"} {
		if err := ReadTar(t.Context(), strings.NewReader(input), to, "/in", none(t)); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%.20q: %v", input, err)
		}
	}
}
