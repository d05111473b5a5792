package life

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// TestAHookOfARestoredContainerHasALimit, as it has in TestAHookHasALimit. Seen to fail where hooks were given their
// limit by the start of a program alone: the removal waited for the hook's child.
func TestAHookOfARestoredContainerHasALimit(t *testing.T) {
	dir := t.TempDir()
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir),
		Tables: fmt.Sprintf("[checkpoint]\ncriu = %q\n", criuPath(t))})
	nodetest.Pull(t, n, node.Busybox)
	c := nodetest.RunPod(t, n).Run(counting)
	waitCount(t, c, 3)
	archive := filepath.Join(t.TempDir(), "checkpoint.tar")
	checkpoint(t, n, c, archive)

	p := nodetest.RunPod(t, n, hangs)
	pids := hangingHook(t, dir, "createRuntime", `, "timeout": 1`)
	if err := p.Create(fromArchive(archive)).TryStart(); err == nil {
		t.Error("it is restored though its hook hangs")
	}
	endedHook(t, pids)
	pids = hangingHook(t, dir, "poststop", `, "timeout": 1`)
	r := p.Run(fromArchive(archive))
	r.Stop(0)
	nodetest.Eventually(t, 30e9, "the container is removed", func() error {
		ctx, cancel := context.WithTimeout(nodetest.Context(t), 10*time.Second)
		defer cancel()
		_, err := n.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: r.ID})
		return err
	})
	endedHook(t, pids)
}
