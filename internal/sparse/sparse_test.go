package sparse

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func file(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestHolesStayHoles was seen to fail, by filling the disk, with io.Copy in place of Copy.
func TestHolesStayHoles(t *testing.T) {
	const size = 256 << 30
	from, to := file(t, "from"), file(t, "to")
	parts := map[int64]string{0: "begin", 100 << 30: "middle", size - 3: "end"}
	for at, text := range parts {
		if _, err := from.WriteAt([]byte(text), at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := from.Seek(7, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	data, err := Copy(context.Background(), to, from)
	if err != nil || data < 14 || data > 1<<20 {
		t.Fatalf("%d bytes, %v", data, err)
	}
	for at, text := range parts {
		got := make([]byte, len(text))
		if _, err := to.ReadAt(got, at); err != nil || string(got) != text {
			t.Errorf("at %d: %q, %v", at, got, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(to.Fd()), &st); err != nil || st.Size != size || st.Blocks > 4096 {
		t.Errorf("%d bytes in %d blocks, %v", st.Size, st.Blocks, err)
	}
}

func TestFilesOfEachKindAreCopied(t *testing.T) {
	for name, size := range map[string]int{"nothing": 0, "a byte": 1, "several blocks": 1<<20 + 17} {
		from, to := file(t, "from"), file(t, "to")
		want := bytes.Repeat([]byte("x"), size)
		if _, err := from.Write(want); err != nil {
			t.Fatal(err)
		}
		if n, err := Copy(context.Background(), to, from); err != nil || n != int64(size) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		if got, err := os.ReadFile(to.Name()); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

func TestACopyEndsWithItsContext(t *testing.T) {
	from, to := file(t, "from"), file(t, "to")
	if _, err := from.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Copy(ctx, to, from); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
