package migrate

import (
	"os"
	"path/filepath"
	"testing"

	"berth/internal/disk"
)

// TestARunThatCouldNotWriteAFileIsRepeatedOrReverted: the file has what an earlier run has written, which nobody has
// changed since. Seen to fail without the sum of what the earlier run has written, and, for the second failure, with
// that of the first failed one in its place.
func TestARunThatCouldNotWriteAFileIsRepeatedOrReverted(t *testing.T) {
	for what, again := range map[string]func(t *testing.T, apply func(string) error, open func() *Record) string{
		"repeated": func(t *testing.T, apply func(string) error, _ func() *Record) string {
			if err := apply("third"); err != nil {
				t.Error(err)
			}
			return "third"
		},
		"reverted": func(t *testing.T, _ func(string) error, open func() *Record) string {
			if _, err := open().Revert(); err != nil {
				t.Error(err)
			}
			return "before"
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "config.yaml")
			open := func() *Record {
				r, err := Open(filepath.Join(dir, "berth"), "containerd")
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			apply := func(data string) error {
				return open().Apply(filepath.Join(dir, "berth"), []File{{Path: path, Data: []byte(data)}})
			}
			holds := func(want string) {
				t.Helper()
				if data, err := os.ReadFile(path); err != nil || string(data) != want {
					t.Errorf("the file holds %q, %v; want %q", data, err, want)
				}
			}
			if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := apply("first"); err != nil {
				t.Fatal(err)
			}
			// A directory that is not empty is where the file is written before it takes its name.
			inTheWay := path + disk.Unfinished
			if err := os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, data := range []string{"second", "third"} {
				if err := apply(data); err == nil {
					t.Fatal("the file was written")
				}
				holds("first")
			}
			if err := os.RemoveAll(inTheWay); err != nil {
				t.Fatal(err)
			}
			holds(again(t, apply, open))
			// The sum of an earlier run counts no longer than until the write is done.
			if what == "repeated" {
				if err := os.WriteFile(path, []byte("first"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := apply("third"); err == nil {
					t.Error("what somebody has put there was written over")
				}
			}
		})
	}
}
