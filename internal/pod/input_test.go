package pod

import (
	"testing"

	"github.com/containerd/errdefs"
)

func TestIDsResolveByUniquePrefix(t *testing.T) {
	objects := map[string]int{"aabb": 1, "aacc": 2, "d": 3}
	for in, want := range map[string]int{"aabb": 1, "aab": 1, "d": 3} {
		if got, err := resolve("thing", objects, in); err != nil || got != want {
			t.Errorf("%q: %d, %v", in, got, err)
		}
	}
	if _, err := resolve("thing", objects, "aa"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("ambiguous: %v", err)
	}
	if _, err := resolve("thing", objects, "x"); !errdefs.IsNotFound(err) {
		t.Errorf("unknown: %v", err)
	}
	if _, err := resolve("thing", objects, ""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("empty: %v", err)
	}
}

func TestLogPathStaysInThePodsDirectory(t *testing.T) {
	if got, err := logPath("/var/log/pods/a", "c/0.log"); err != nil || got != "/var/log/pods/a/c/0.log" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range [][2]string{{"/logs", "../x"}, {"/logs", "a/../../x"}, {"logs", "x"}, {"/logs", "."}} {
		if got, err := logPath(bad[0], bad[1]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %q, %v", bad, got, err)
		}
	}
	if got, err := logPath("", "x"); err != nil || got != "" {
		t.Errorf("no directory: %q, %v", got, err)
	}
}
