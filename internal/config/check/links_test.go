package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/config"
)

// TestRootAndStateHaveNoLinks: at their ends, on the way to them, and before they are there.
func TestRootAndStateHaveNoLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []string{"disk/berth", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, made), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"end": "disk/berth", "way": "disk", "var-run": dir + "/run", "gone": dir + "/nothing", "system": "/var/lib",
		"within": "disk/berth",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ root, state, wantRoot, wantState, problem string }{
		{"/end", "/var-run/berth", "/disk/berth", "/run/berth", ""},
		{"/way/berth/../new/root", "/run", "/disk/new/root", "/run", ""},
		{"/new", "/run", "/new", "/run", ""},
		{"/gone", "/run", "", "", "root: " + dir + "/gone is a link to " + dir + "/nothing, which is not there"},
		{"/new", "/gone/berth", "", "", "state: " + dir + "/gone is a link to " + dir + "/nothing, which is not there"},
		{"/system", "/run", "", "", `root: "/var/lib" belongs to the system`},
		{"/disk/berth", "/within/state", "", "", `state: "` + dir + `/disk/berth/state" lies in root`},
	} {
		c := config.Default()
		c.Root, c.State = dir+test.root, dir+test.state
		got, err := WithoutLinks(c)
		if test.problem != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.problem) {
				t.Errorf("%s and %s: %v, want %s", test.root, test.state, err, test.problem)
			}
			if err := Node(c); err == nil || !strings.Contains(err.Error(), test.problem) {
				t.Errorf("%s and %s: the check says %v, want %s", test.root, test.state, err, test.problem)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s and %s: %v", test.root, test.state, err)
			continue
		}
		if got.Root != dir+test.wantRoot || got.State != dir+test.wantState {
			t.Errorf("%s and %s are %s and %s, want %s and %s below %s",
				test.root, test.state, got.Root, got.State, test.wantRoot, test.wantState, dir)
		}
		if c.Root != dir+test.root || c.State != dir+test.state {
			t.Errorf("what was configured is %s and %s now", c.Root, c.State)
		}
	}
}
