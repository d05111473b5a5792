package source

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzNamesOfFiles: whatever names a manifest gives to two layers, their files are below the root, and one is neither
// the other nor in it.
func FuzzNamesOfFiles(f *testing.F) {
	for _, names := range [][2]string{{"a", "a/b"}, {"../a", "b/./../a"}, {"/", "."}, {"", "sha256-1"}, {"a//b", "a"},
		{"\x00", "a\xff"}, {strings.Repeat("a/", 200), strings.Repeat("a", 300)}} {
		f.Add(names[0], names[1])
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		layer := func(name string) ocispec.Descriptor {
			return ocispec.Descriptor{Digest: digest.FromString(name), Annotations: map[string]string{
				ocispec.AnnotationTitle: name}}
		}
		a := &Artifact{}
		if a.place([]ocispec.Descriptor{layer(first), layer(second)}) != nil {
			return
		}
		dirs := map[string]bool{}
		for i, one := range a.Files {
			if one.Path == "." || !fs.ValidPath(strings.ToValidUTF8(one.Path, "?")) || strings.ContainsRune(one.Path, 0) ||
				one.Layer != i && first != second {
				t.Errorf("%q and %q: %+v", first, second, a)
			}
			for at, c := range one.Path {
				if c == '/' {
					dirs[one.Path[:at]] = true
				}
			}
			for _, other := range a.Files[:i] {
				if one.Path == other.Path || strings.HasPrefix(one.Path, other.Path+"/") ||
					strings.HasPrefix(other.Path, one.Path+"/") {
					t.Errorf("%q and %q: %+v", first, second, a)
				}
			}
		}
		if len(dirs) != a.Dirs {
			t.Errorf("%q and %q: %d directories, and they are %q", first, second, a.Dirs, slices.Sorted(maps.Keys(dirs)))
		}
	})
}
