package crictl

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestCrictlFollowsALogThatTheKeeperRotates: crictl follows logs with the code of a kubelet. A rotation by the keeper
// looks to it like one by a kubelet, so it loses no line and has none twice, as long as it has read a file before the
// next rotation: it knows the newest file only. Here that is ten seconds.
func TestCrictlFollowsALogThatTheKeeperRotates(t *testing.T) {
	nodetest.BerthOnly(t, "containerd rotates no logs")
	crictl := binary(t)
	const lines = 60000
	const tables = "[log]\nmax_size = \"1m\"\nmax_files = 100\nrate = \"100k\"\nburst = \"64k\"\n"
	n := nodetest.Start(t, node.Options{Tables: tables})
	p := nodetest.RunPod(t, n)
	const script = "echo start; mkdir -p /tmp; mkfifo /tmp/go /tmp/end; read x </tmp/go; seq 1 %d; read x </tmp/end"
	c := p.Run(nodetest.Sh(fmt.Sprintf(script, lines)))
	out, err := os.Create(filepath.Join(t.TempDir(), "followed"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	follow := exec.CommandContext(nodetest.Context(t), crictl, "--runtime-endpoint", n.Address, "logs", "-f", c.ID)
	var complaints bytes.Buffer
	follow.Stdout, follow.Stderr = out, &complaints
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	printed := func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	nodetest.Eventually(t, 10*time.Second, "crictl prints the first line", func() error {
		if text := printed(); text != "start\n" {
			return fmt.Errorf("it has printed %q", text)
		}
		return nil
	})
	c.Sh("echo go >/tmp/go")
	var want strings.Builder
	want.WriteString("start\n")
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	// Only then may the container end: crictl stops at the end of the file that it is at.
	nodetest.Eventually(t, 2*time.Minute, "crictl prints each line once", func() error {
		if got := printed(); got != want.String() {
			return fmt.Errorf("it has printed %d lines, want %d; they end with %q", strings.Count(got, "\n"), lines+1,
				got[max(len(got)-30, 0):])
		}
		return nil
	})
	// The container may end, and the command with it, before the command has.
	_, _ = c.Exec(60, "sh", "-c", "echo end >/tmp/end")
	if s := c.WaitExit(); s.State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("the container is %v", s.State)
	}
	if err := follow.Wait(); err != nil {
		t.Fatalf("crictl logs -f: %v: %s", err, complaints.String())
	}
	if got := printed(); got != want.String() {
		t.Errorf("crictl has printed %d lines, want %d", strings.Count(got, "\n"), lines+1)
	}
	if parts, err := filepath.Glob(c.LogPath() + ".*"); err != nil || len(parts) < 2 {
		t.Errorf("the log was rotated %d times (%v)", len(parts), err)
	}
}
