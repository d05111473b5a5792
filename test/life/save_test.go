package life

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image/layertar"
	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// berthOf is the command line for a node.
func berthOf(t *testing.T, n *node.Node) func(ctx context.Context, args ...string) *exec.Cmd {
	t.Helper()
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, filepath.Join(binaries, "berth"),
			append([]string{"--address", n.Address}, args...)...)
	}
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, stderr.String())
	}
	return string(out)
}

func TestAnImageThatIsSavedRunsOnAnotherNode(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	ctx := nodetest.Context(t)
	first, second := nodetest.Start(t, node.Options{}), nodetest.Start(t, node.Options{})
	berth, other := berthOf(t, first), berthOf(t, second)
	load := berth(ctx, "load")
	load.Stdin = bytes.NewReader(archive(t, map[string]string{"example.com/a:1": "first", "example.com/b:2": "second"}))
	output(t, load)
	file := filepath.Join(t.TempDir(), "images.tar")
	output(t, berth(ctx, "save", "-o", file, "example.com/a:1", "example.com/b:2"))
	stdout := output(t, berth(ctx, "save", "example.com/a:1", "example.com/b:2"))
	data, err := os.ReadFile(file)
	if err != nil || stdout != string(data) {
		t.Errorf("standard output has %d bytes, the file %d: %v", len(stdout), len(data), err)
	}
	output(t, other(ctx, "load", "-i", file))
	for ref, words := range map[string]string{"example.com/a:1": "first", "example.com/b:2": "second"} {
		if a, b := imageOf(t, first, ref), imageOf(t, second, ref); a.GetId() == "" || a.GetId() != b.GetId() {
			t.Errorf("%s is %v there and %v here", ref, b, a)
		}
		c := nodetest.RunPod(t, second).Run(func(c *cri.ContainerConfig) { c.Image.Image = ref })
		if got := c.Sh("cat /words"); got != words {
			t.Errorf("%s holds %q", ref, got)
		}
	}
	t.Run("containerd", func(t *testing.T) { importedByContainerd(t, file) })
	for name, args := range map[string][]string{
		"an image that is not there": {"save", "-o", filepath.Join(t.TempDir(), "x"), "example.com/a:1",
			"example.com/none:1"},
		"a directory that is not": {"save", "-o", "/no/such/directory/x", "example.com/a:1"},
		"a full disk":             {"save", "-o", "/dev/full", "example.com/a:1"},
	} {
		var exit *exec.ExitError
		out, err := berth(ctx, args...).CombinedOutput()
		if !errors.As(err, &exit) || strings.Contains(string(out), "panic") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if left, _ := os.ReadDir(filepath.Dir(args[2])); args[2][0:5] != "/dev/" && len(left) > 0 {
			t.Errorf("%s has left %v", name, left)
		}
	}
}

// importedByContainerd has a containerd import an archive, which unpacks the layers and verifies all digests.
func importedByContainerd(t *testing.T, file string) {
	for _, program := range []string{"containerd", "ctr"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: %v", program, err)
		}
	}
	ctx, dir := nodetest.Context(t), t.TempDir()
	socket, config := filepath.Join(dir, "s"), filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"+
		"[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n[plugins.\"io.containerd.internal.v1.opt\"]\npath = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), socket, socket+".ttrpc", filepath.Join(dir, "opt"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log nodetest.Buffer
	daemon := exec.Command("containerd", "-c", config)
	daemon.Stdout, daemon.Stderr = &log, &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
	}()
	ctr := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "ctr", append([]string{"-a", socket}, args...)...).CombinedOutput()
		return string(out), err
	}
	nodetest.Eventually(t, 30*time.Second, "containerd answers", func() error {
		_, err := ctr("version")
		return err
	})
	if out, err := ctr("images", "import", file); err != nil {
		t.Fatalf("ctr images import: %v: %s\n%s", err, out, log.String())
	}
	out, err := ctr("images", "check")
	if err != nil || strings.Count(out, "complete") != 2 || !strings.Contains(out, "example.com/a:1") ||
		!strings.Contains(out, "example.com/b:2") {
		t.Errorf("ctr images check: %v: %s", err, out)
	}
}

// A save that is cut off, by the end of its client or of berthd, leaves nothing behind: neither a child, nor
// a file of its own, nor a layer that stays after its image.
func TestASaveThatIsCutOffLeavesNothing(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	ctx := nodetest.Context(t)
	n := nodetest.Start(t, node.Options{})
	berth := berthOf(t, n)
	img := image(t, registrytest.Layer(registrytest.Random(1, "r", 40, 64<<20)...))
	if err := n.Registry.Push("large:1", img); err != nil {
		t.Fatal(err)
	}
	const ref = node.RegistryHost + "/large:1"
	nodetest.Pull(t, n, ref)
	layers := filepath.Join(n.Root, "images", "layers")
	before := dirNames(t, layers)
	// begun starts a save that nobody reads: the archive waits in the pipe.
	begun := func() (cmd *exec.Cmd, child int) {
		cmd = berth(context.Background(), "save", ref)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, 10*time.Second, "a child makes the layer", func() error {
			child, err = rebuilder(n)
			return err
		})
		return cmd, child
	}
	cmd, child := begun()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	nodetest.Eventually(t, 10*time.Second, "the child ends with its client", func() error { return rebuilt(child) })
	cmd, child = begun()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := n.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, 10*time.Second, "the child ends with berthd", func() error { return rebuilt(child) })
	if after := dirNames(t, layers); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("layers were %v and are %v", before, after)
	}
	output(t, berth(ctx, "save", "-o", filepath.Join(t.TempDir(), "x"), ref))
	output(t, berth(ctx, "rmi", ref))
	nodetest.Eventually(t, 20*time.Second, "the layers go with their image", func() error {
		for _, name := range before {
			if _, err := os.Stat(filepath.Join(layers, name)); err == nil && name != "0" {
				return fmt.Errorf("layer %s is still there", name)
			}
		}
		return nil
	})
}

func dirNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// rebuilder is the process that makes the tar of a layer for a node, of which there has to be one.
func rebuilder(n *node.Node) (pid int, err error) {
	all, err := node.Processes()
	if err != nil {
		return 0, err
	}
	parents := map[int]int{}
	for _, p := range all {
		parents[p.PID] = p.Parent
	}
	var found []int
	for _, p := range all {
		above := p.Parent
		for above > 1 && above != n.PID() {
			above = parents[above]
		}
		if above == n.PID() && slices.Contains(p.Args, layertar.Role.Name) {
			found = append(found, p.PID)
		}
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("these make a layer: %v", found)
	}
	return found[0], nil
}

// rebuilt says whether a process that made the tar of a layer has ended.
func rebuilt(pid int) error {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err == nil && strings.Contains(string(line), layertar.Role.Name) {
		return fmt.Errorf("process %d makes a layer", pid)
	}
	return nil
}
