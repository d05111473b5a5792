package rootfs

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/asroot"
)

// BenchmarkManyFiles mounts 400 files read-only: from one directory, as artifacts have them, from a directory for each,
// and each by itself.
func BenchmarkManyFiles(b *testing.B) {
	asroot.Need(b, "mounts")
	const files = 400
	dir := b.TempDir()
	tree := filepath.Join(dir, "tree")
	var apart []string
	for i := range files {
		name := strconv.Itoa(i)
		one := filepath.Join(dir, "apart", name)
		for _, at := range []string{tree, one} {
			must(b, os.MkdirAll(at, 0o755))
			must(b, os.WriteFile(filepath.Join(at, name), nil, 0o644))
		}
		apart = append(apart, one)
	}
	overlay := func(b *testing.B, lowers []string) {
		at := filepath.Join(b.TempDir(), "c")
		for b.Loop() {
			_, err := Mount(context.Background(), Options{Dir: at, Lowers: lowers, Readonly: true})
			must(b, err)
			must(b, Unmount(at))
		}
	}
	b.Run("one directory", func(b *testing.B) { overlay(b, []string{tree}) })
	b.Run("a directory for each", func(b *testing.B) { overlay(b, apart) })
	b.Run("a mount for each", func(b *testing.B) {
		at := b.TempDir()
		for i := range files {
			must(b, os.WriteFile(filepath.Join(at, strconv.Itoa(i)), nil, 0o644))
		}
		for b.Loop() {
			for i := range files {
				name := filepath.Join(at, strconv.Itoa(i))
				must(b, unix.Mount(filepath.Join(tree, strconv.Itoa(i)), name, "", unix.MS_BIND, ""))
				must(b, unix.Mount("", name, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			}
			for i := range files {
				must(b, unix.Unmount(filepath.Join(at, strconv.Itoa(i)), unix.MNT_DETACH))
			}
		}
	})
}
