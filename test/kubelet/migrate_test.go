package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestANodeGoesFromContainerdToBerthAndBack migrates a node below its kubelet with `berth migrate containerd`, as
// docs/migrating.md says: it is drained, the kubelet and containerd are stopped, the command translates the
// configuration, takes the images over and gives the kubelet Berth's socket, and the same pod runs on Berth, where no
// registry can be reached. --revert leads back to containerd. The kubelet's other files are never changed.
func TestANodeGoesFromContainerdToBerthAndBack(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("containerd"); err != nil {
		t.Skipf("there is no containerd to come from: %v", err)
	}
	registry, err := node.NewRegistry()
	if err != nil {
		t.Fatal(err)
	}
	k := ownOf(t, node.StartContainerd, node.Options{Registry: registry}, options{})
	containerd := k.node
	web := manifest("web", sh("web", serve(8080, "served")))
	visit(t, k, web, "containerd")
	leave(t, k)
	if err := registry.Close(); err != nil {
		t.Fatal(err)
	}

	settings := filepath.Join(k.dir, "config.json")
	before, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	var etc string
	berth, err := node.Start(nodetest.Context(t), node.Options{
		Registry: registry, CNI: true, Prepare: func(n *node.Node) (err error) {
			if etc, err = n.MoveConfig(); err != nil {
				return err
			}
			// The node's other settings of this kind are flags of its daemon.
			own := fmt.Sprintf("address = %q\n[image]\npreload_dir = %q\n", n.Socket, filepath.Join(n.Dir, "preload"))
			if err := os.Mkdir(filepath.Join(etc, "config.d"), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(etc, "config.d", "10-node.toml"), []byte(own), 0o600); err != nil {
				return err
			}
			return migrate(t, containerd, etc, "--kubelet-config", settings)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon and keeper said last:\n%s", berth.LogTail())
		}
		if err := endNode(berth); err != nil {
			t.Error(err)
		}
	})
	k.node = berth
	enter(t, k)
	if v, err := berth.Runtime.Version(nodetest.Context(t), &cri.VersionRequest{}); err != nil ||
		!strings.Contains(v.RuntimeVersion, "+berth.") {
		t.Errorf("the runtime is %v, %v", v, err)
	}
	visit(t, k, web, "containerd") // which is its name after a migration
	leave(t, k)

	if err := migrate(t, containerd, etc, "--revert"); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(settings); err != nil || string(after) != string(before) {
		t.Errorf("the kubelet's configuration was\n%s\nand is after the way back\n%s (%v)", before, after, err)
	}
	k.node = containerd
	if err := containerd.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	enter(t, k)
	visit(t, k, web, "containerd")
}

// migrate runs `berth migrate containerd` for the configuration in a directory of Berth's.
func migrate(t *testing.T, containerd *node.Node, etc string, args ...string) error {
	t.Helper()
	programs, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		return err
	}
	args = append([]string{"migrate", "containerd", "--config", filepath.Join(containerd.Dir, "config.toml"),
		"--to", etc}, args...)
	out, err := exec.CommandContext(nodetest.Context(t), filepath.Join(programs, "berth"), args...).CombinedOutput()
	t.Logf("berth %s:\n%s", strings.Join(args, " "), out)
	return err
}

// visit runs a pod on the runtime that the kubelet has, uses it as clients do, and removes it.
func visit(t *testing.T, k *kubelet, spec *v1.Pod, runtime string) {
	t.Helper()
	p := k.run(t, spec)
	now := p.running()
	if id := now.Status.ContainerStatuses[0].ContainerID; !strings.HasPrefix(id, runtime+"://") {
		t.Errorf("the container is %s, and not of %s", id, runtime)
	}
	eventually(t, 10*time.Second, "the pod answers on "+runtime, func() error {
		return answers("http://"+net.JoinHostPort(now.Status.PodIP, "8080")+"/", "served")
	})
	if got := p.sh("web", "cat /www/index.html"); strings.TrimSpace(got) != "served" {
		t.Errorf("an exec on %s says %q", runtime, got)
	}
	p.remove()
	eventually(t, 40*time.Second, "the pod is gone", p.gone)
}

// leave drains the node, stops the kubelet and its runtime, and removes what the kubelet keeps of pods that have ended.
func leave(t *testing.T, k *kubelet) {
	t.Helper()
	err := errors.Join(k.drain(), k.signal(syscall.SIGTERM), k.node.RemoveAll(nodetest.Context(t)), k.node.Terminate())
	if err != nil {
		t.Fatal(err)
	}
}

// enter starts the kubelet on the runtime that its configuration names.
func enter(t *testing.T, k *kubelet) {
	t.Helper()
	if err := k.start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}
