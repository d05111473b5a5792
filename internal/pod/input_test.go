package pod

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// Seen to fail, with names and paths that are too long, where only the directory is checked: a name of 70,000 bytes had
// the keeper end berthd's session again and again.
func TestLogPathStaysInThePodsDirectory(t *testing.T) {
	if got, err := logPath("/var/log/pods/a", "c/0.log"); err != nil || got != "/var/log/pods/a/c/0.log" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range [][2]string{{"/logs", "../x"}, {"/logs", "a/../../x"}, {"logs", "x"}, {"/logs", "."},
		{"/logs", strings.Repeat("x", 256)}, {"/logs", strings.Repeat("xxx/", 1023) + "xxx"}} {
		if got, err := logPath(bad[0], bad[1]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %q, %v", bad, got, err)
		}
	}
	for _, longest := range []string{strings.Repeat("x", 255), strings.Repeat("xxx/", 1022) + "x"} {
		if got, err := logPath("/logs", longest); err != nil || got != "/logs/"+longest {
			t.Errorf("%q, %v", got, err)
		}
	}
	if got, err := logPath("", "x"); err != nil || got != "" {
		t.Errorf("no directory: %q, %v", got, err)
	}
}
