package disk

import (
	"io"
	"testing"
)

func TestAFileWithoutANameLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	f, err := Unnamed(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	only(t, dir)
	if _, err := f.WriteString("content"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(f); err != nil || string(data) != "content" {
		t.Errorf("it holds %q: %v", data, err)
	}
	if _, err := Unnamed(dir + "/none"); err == nil {
		t.Error("a directory that is not there has a file")
	}
}
