package life

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/api/pouch"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestPoststopHooksRunOnce, also after one that fails, whose error keeps nobody from removing the container. A pause
// has the keeper hold libcontainer's state of the container in memory. Seen to fail where the error of the hook was
// that of the removal: the hook ran again at each try, the next one never ran, and the container stayed.
func TestPoststopHooksRunOnce(t *testing.T) {
	nodetest.BerthOnly(t, "its errors are its own")
	dir, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir)})
	nodetest.Pull(t, n, node.Busybox)
	writeHook(t, dir, "a", "poststop", fmt.Sprintf("echo fails >>%s; echo so it says; exit 3", ran), "")
	writeHook(t, dir, "b", "poststop", fmt.Sprintf("echo follows >>%s", ran), "")
	c := nodetest.RunPod(t, n, hangs).Run(sleeps)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	if _, err := d.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pouch.UnpauseContainer(ctx, &pouch.UnpauseContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatal(err)
	}
	c.Stop(0)
	c.Remove()
	if text, err := os.ReadFile(ran); err != nil || strings.Join(strings.Fields(string(text)), " ") != "fails follows" {
		t.Errorf("hooks that ran: %q, %v", text, err)
	}
	logged := ""
	for _, path := range n.Logs() {
		text, _ := os.ReadFile(path)
		logged += string(text)
	}
	if !strings.Contains(logged, "poststop hook failed") || !strings.Contains(logged, "so it says") {
		t.Error("no log says that the hook has failed")
	}
}
