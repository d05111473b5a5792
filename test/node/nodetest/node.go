package nodetest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// EnvLogs is a directory that gets the whole logs of the daemon and the keeper of a test that failed, in a directory
// named after the test and the time. Unset: only their ends are printed.
const EnvLogs = "BERTH_TEST_LOGS"

// EnvRuntime chooses the runtime under test: berth, or containerd.
const EnvRuntime = "BERTH_TEST_RUNTIME"

var shared struct {
	sync.Once
	options node.Options
	node    *node.Node
	err     error
}

// Main runs a package's tests and ends its shared node, which is a plain one unless options are given;
// use it in TestMain. A trace that the shared node leaves behind fails the package.
func Main(m *testing.M, options ...node.Options) {
	if len(options) > 0 {
		shared.options = options[0]
	}
	code := m.Run()
	if n := shared.node; n != nil {
		if err := end(n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := node.Cleanup(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// end stops a node after its pods are gone, and says what is left of either.
func end(n *node.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(3*time.Minute))
	defer cancel()
	if n.PID() == 0 {
		return n.Stop()
	}
	err := n.RemoveAll(ctx)
	left, leftErr := remains(n)
	log := n.LogTail()
	stopErr := n.Stop()
	switch {
	case err != nil:
		return fmt.Errorf("remove the pods: %w\n%s", err, log)
	case leftErr != nil:
		return fmt.Errorf("count leftovers: %w", leftErr)
	case left.Count() > 0 && !n.Containerd:
		return fmt.Errorf("left behind after the last pod:\n%s", left)
	case stopErr != nil:
		return fmt.Errorf("stop the node: %w", stopErr)
	}
	if left, err := n.Leftovers(); err != nil {
		return err
	} else if left.Count() > 0 {
		return fmt.Errorf("left behind after the node:\n%s", left)
	}
	return nil
}

// remains counts what is left of a node's pods.
func remains(n *node.Node) (node.Leftovers, error) {
	if n.Containerd {
		return n.Settled(12 * time.Second) // of what containerd leaves, nobody is told
	}
	return n.Retire(time.Minute)
}

// Containerd says whether the suite runs against containerd.
func Containerd() bool { return os.Getenv(EnvRuntime) == "containerd" }

// NodeMounts skips a test that looks for mounts of pods on the node, where they are in a mount namespace of Berth's
// own.
func NodeMounts(t testing.TB) {
	t.Helper()
	if os.Getenv(node.EnvMountNamespace) == "own" {
		t.Skip("it looks for mounts of pods on the node")
	}
}

// BerthOnly skips a claim that holds for Berth alone.
func BerthOnly(t testing.TB, why string) {
	t.Helper()
	if Containerd() {
		t.Skipf("not containerd's: %s", why)
	}
}

// Root skips what only root may do.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
}

// Shared is the one node that the tests of a package have in common; Main ends it.
func Shared(t testing.TB) *node.Node {
	t.Helper()
	Root(t)
	shared.Do(func() { shared.node, shared.err = start(shared.options) })
	if shared.err != nil {
		t.Fatalf("start the shared node: %v", shared.err)
	}
	return shared.node
}

// Start makes a node for one test. It ends with the test, which fails if a trace of it is left.
func Start(t testing.TB, o node.Options) *node.Node {
	t.Helper()
	Root(t)
	n, err := start(o)
	if err != nil {
		t.Fatalf("start a node: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon and keeper said last:\n%s", n.LogTail())
			keepLogs(t, n)
		}
		if err := end(n); err != nil {
			t.Error(err)
		}
	})
	return n
}

// keepLogs copies the logs of a failed test's node to where EnvLogs says.
func keepLogs(t testing.TB, n *node.Node) {
	t.Helper()
	dir := os.Getenv(EnvLogs)
	if dir == "" {
		return
	}
	dir = filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "_")+"-"+time.Now().Format("150405"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Errorf("keep the logs: %v", err)
		return
	}
	for _, log := range n.Logs() {
		data, err := os.ReadFile(log)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(log)), data, 0o600)
		}
		if err != nil {
			t.Errorf("keep the logs: %v", err)
		}
	}
	t.Logf("their whole logs are in %s", dir)
}

func start(o node.Options) (*node.Node, error) {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(5*time.Minute)) // a first build takes its time
	defer cancel()
	if Containerd() {
		return node.StartContainerd(ctx, o)
	}
	return node.Start(ctx, o)
}

// Context ends with the test, and in any case after a quarter of an hour.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(3*time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// Building bounds the build of a program of others, which takes minutes where Go's cache has nothing of it.
func Building(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(6*time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// Handler skips a runtime handler whose program does not run here, or is not installed. "" and berth are the built-in
// runtime.
func Handler(t testing.TB, n *node.Node, handler string) {
	t.Helper()
	if handler != "" && handler != "berth" && n.Handlers[handler] == "" {
		t.Skipf("%[1]s is not installed (Debian: %[1]s)", handler)
	}
	controllers, err := os.ReadFile("/sys/fs/cgroup/unified/cgroup.controllers")
	if controllers = bytes.TrimSpace(controllers); handler == "crun" && err == nil && len(controllers) > 0 {
		t.Skipf("crun does not run where v1 controllers are mounted and v2 has some too (here: %s)", controllers)
	}
}

// Pull brings an image to a node.
func Pull(t testing.TB, n *node.Node, ref string) {
	t.Helper()
	status, err := n.Images.ImageStatus(Context(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err == nil && status.Image != nil {
		return
	}
	if _, err := n.Images.PullImage(Context(t), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		t.Fatalf("pull %s: %v", ref, err)
	}
}
