package disk_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/disk"
)

// TestReadFileReadsWholeFiles of sizes around those of its buffer, and files of /proc, which say that they are empty.
func TestReadFileReadsWholeFiles(t *testing.T) {
	dir := t.TempDir()
	for _, size := range []int{0, 1, 511, 512, 513, 4096, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3 << 20} {
		want := bytes.Repeat([]byte("berth"), size/5+1)[:size]
		path := filepath.Join(dir, "file")
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := disk.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %d, %v", size, len(got), err)
		}
	}
	want, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := disk.ReadFile("/proc/self/limits"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("/proc/self/limits: %q, %v", got, err)
	}
}

func TestReadFileSaysWhatItCouldNotDo(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		path string
		want error
	}{
		{filepath.Join(dir, "none"), fs.ErrNotExist},
		{dir, unix.EISDIR},
		{"/proc/self/mem", unix.EIO}, // address 0
	} {
		var named *fs.PathError
		if _, err := disk.ReadFile(c.path); !errors.Is(err, c.want) || !errors.As(err, &named) || named.Path != c.path {
			t.Errorf("%s: %v", c.path, err)
		}
	}
}
