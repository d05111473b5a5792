package life

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestRootAndStateMayBeBehindLinks: as on nodes whose /var/lib/berth is a link to a larger disk, and whose state is
// configured below /var/run.
func TestRootAndStateMayBeBehindLinks(t *testing.T) {
	nodetest.BerthOnly(t, "it is about Berth's own directories")
	dir, err := os.MkdirTemp("", "b") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "disk"), 0o711); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("disk", link); err != nil {
		t.Fatal(err)
	}
	n := nodetest.Start(t, node.Options{Dir: link})
	p := nodetest.RunPod(t, n)
	c := p.Run()
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if got := c.Sh("echo lives"); got != "lives" {
		t.Errorf("after a restart of berthd an exec says %q", got)
	}
	p.Remove()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) && strings.Contains(line, c.ID) {
			t.Errorf("after the pod's removal there is still %s", line)
		}
	}
}
