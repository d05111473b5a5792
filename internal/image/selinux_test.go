package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestTheLabelOfTheLayersIsSetLast: it says that all layers have theirs, so a start that is killed or fails in the
// middle must not leave it. It was seen to fail where one call labelled the directory with all that is in it. The
// function that sets labels is the test's own, so the test needs no SELinux.
func TestTheLabelOfTheLayersIsSetLast(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"0", "1", "2"} {
		if err := os.MkdirAll(filepath.Join(dir, n, layerFS), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	all := []string{
		filepath.Join(dir, "0") + " true", filepath.Join(dir, "1") + " true", filepath.Join(dir, "2") + " true",
		dir + " false",
	}
	cut := errors.New("read-only file system")
	for n := range len(all) + 1 { // how many calls succeed
		var done []string
		err := relabel(dir, "label", func(path, label string, recurse bool) error {
			if len(done) == n {
				return cut
			}
			done = append(done, fmt.Sprint(path, " ", recurse))
			if label != "label" {
				t.Errorf("the label of %s is %q", path, label)
			}
			return nil
		})
		if (n < len(all)) != errors.Is(err, cut) || !slices.Equal(done, all[:n]) {
			t.Errorf("after %d calls: %v, %v", n, done, err)
		}
	}
}
