package blockio

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

var quiet = slog.New(slog.DiscardHandler)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "blockio.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAFileOfClasses(t *testing.T) {
	first, err := Load(write(t, "Classes:\n  slow:\n  - Weight: 80\n  none: []\n"), quiet)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Load(write(t, "Classes:\n  fast:\n  - Weight: 400\n"), quiet)
	if err != nil {
		t.Fatal(err)
	}
	slow, err := first.Get("slow")
	if err != nil || slow.Weight != 80 {
		t.Errorf("slow: %+v, %v", slow, err)
	}
	if _, err := first.Get("fast"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), `"none", "slow"`) {
		t.Errorf("a class of another file: %v", err)
	}
	if fast, err := second.Get("fast"); err != nil || fast.Weight != 400 {
		t.Errorf("fast: %+v, %v", fast, err)
	}
	empty, err := Load(write(t, ""), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := empty.Get("fast"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an empty file has the classes of the one before: %v", err)
	}
	none, err := Load("", quiet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Get("fast"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("no file: %v", err)
	}
}

func TestWrongFilesAreNamed(t *testing.T) {
	for text, says := range map[string]string{
		"Classes:\n  a:\n  - Weight: 5\n":                              "Weight",
		"Classes:\n  a:\n  - Wait: 5\n":                                "Wait",
		"Classes:\n  a:\n  - ThrottleReadBps: 1M\n":                    "Devices not listed",
		"Classes:\n  a:\n  - Devices: [/dev/null]\n    Weight: lots\n": "lots",
		"{": "yaml",
	} {
		path := write(t, text)
		if _, err := Load(path, quiet); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	const none = "/nowhere/blockio.yaml"
	if _, err := Load(none, quiet); err == nil || !strings.Contains(err.Error(), none) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestTheNearestAnnotationNamesTheClass(t *testing.T) {
	container := map[string]string{"io.kubernetes.cri.blockio-class": "own"}
	pod := map[string]string{
		"blockio.resources.beta.kubernetes.io/pod":           "all",
		"blockio.resources.beta.kubernetes.io/container.web": "web",
	}
	for _, c := range []struct {
		name      string
		container map[string]string
		want      string
	}{{"web", container, "own"}, {"web", nil, "web"}, {"log", nil, "all"}} {
		if got, _ := Of(c.name, c.container, pod); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got, key := Of("web", nil, nil); got != "" || key != "" {
		t.Errorf("without annotations: %q by %q", got, key)
	}
}

func TestAPatternThatFitsNoDeviceIsLogged(t *testing.T) {
	var said bytes.Buffer
	path := write(t, "Classes:\n  a:\n  - Devices: [/dev/no-such*]\n    ThrottleReadBps: 1M\n")
	if _, err := Load(path, slog.New(slog.NewTextHandler(&said, nil))); err != nil {
		t.Fatal(err)
	}
	if log := said.String(); !strings.Contains(log, "/dev/no-such*") || !strings.Contains(log, path) {
		t.Errorf("the log has %q", log)
	}
}
