package crictl

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m) }

// binary is crictl: $CRICTL, or built from its Go module as test/tools names it. The go command keeps
// what it has built.
func binary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("CRICTL"); path != "" {
		return path
	}
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "crictl")
	build := exec.Command("go", "build", "-o", path, "sigs.k8s.io/cri-tools/cmd/crictl")
	build.Dir = filepath.Join(root, "test", "tools")
	build.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build crictl: %v\n%s", err, out)
	}
	return path
}

func TestLifeOfAPodByCrictl(t *testing.T) {
	crictl := binary(t) // not in the script's time: a build may take minutes
	n := nodetest.Start(t, node.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(3*time.Minute))
	defer cancel()
	script := exec.CommandContext(ctx, "sh", "life.sh")
	script.Env = append(os.Environ(), "CRICTL="+crictl, "ADDRESS="+n.Address, "IMAGE="+node.Busybox, "WORK="+t.TempDir())
	script.Env = append(script.Env, "CGROUP="+n.PodCgroup("crictl"))
	if nodetest.Containerd() {
		script.Env = append(script.Env, "TRANSPORTS=spdy")
	}
	script.WaitDelay = 30 * time.Second
	out, err := script.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
