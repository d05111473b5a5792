package pod

import (
	"testing"

	"github.com/containerd/errdefs"
)

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
