package life

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// runElsewhere runs a container in a pod whose cgroup parent is not below the node's cgroup root, as those that a
// kubelet names, so that no claim on the cgroup root protects it.
func runElsewhere(t *testing.T, n *node.Node) *nodetest.Container {
	t.Helper()
	parent := "/" + n.Name + "pods"
	if n.Systemd {
		parent = n.Name + "pods.slice"
	}
	t.Cleanup(func() {
		roots, err := node.CgroupMounts()
		if err != nil {
			t.Error(err)
		}
		for _, root := range roots {
			_ = os.Remove(filepath.Join(root, parent)) // not in each hierarchy
		}
	})
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = parent })
	return p.Run()
}

// TestAnotherRootEndsNoContainer: a berthd whose root has no records of the keeper's containers, because its
// configuration names another directory or the disk is not mounted, took them for lost ones and ended them. Now it does
// not start, and says why. With the root of before, all goes on. Seen to fail without the IDs of root and state.
func TestAnotherRootEndsNoContainer(t *testing.T) {
	nodetest.BerthOnly(t, "it is about Berth's own directories")
	dirs := t.TempDir()
	root := filepath.Join(dirs, "root")
	link := func(to string) {
		t.Helper()
		to = filepath.Join(dirs, to)
		if err := errors.Join(os.MkdirAll(to, 0o700), os.RemoveAll(root), os.Symlink(to, root)); err != nil {
			t.Fatal(err)
		}
	}
	link("first")
	n := nodetest.Start(t, node.Options{Root: root})
	c := runElsewhere(t, n)
	for how, end := range map[string]func() error{"ended": n.Terminate, "killed": n.Kill} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		link("second")
		ctx, cancel := context.WithTimeout(t.Context(), node.Patience(time.Minute))
		err := n.Restart(ctx)
		cancel()
		if err == nil {
			t.Errorf("berthd was %s: one with another root starts", how)
			if err := n.Terminate(); err != nil {
				t.Fatal(err)
			}
		} else {
			for _, want := range []string{"state", n.State, filepath.Join(dirs, "first"), filepath.Join(dirs, "second"),
				"containers: 2", "pods: 1"} { // the pod's init is one
				if !strings.Contains(err.Error(), want) {
					t.Errorf("berthd was %s: the error does not say %s: %v", how, want, err)
				}
			}
		}
		link("first")
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		if got := c.Sh("echo lives"); got != "lives" {
			t.Errorf("the container: %q", got)
		}
	}
}

// TestTwoNodesNeverHaveOneState: the second is refused, and the containers of the first live. Before, it ended them.
// Seen to fail without the lock of the state directory.
func TestTwoNodesNeverHaveOneState(t *testing.T) {
	nodetest.BerthOnly(t, "it is about Berth's own directories")
	first := nodetest.Start(t, node.Options{})
	c := runElsewhere(t, first)
	ctx, cancel := context.WithTimeout(t.Context(), node.Patience(time.Minute))
	defer cancel()
	second, err := node.Start(ctx, node.Options{Args: []string{"--state", first.State, "--debug.address", "none"}})
	if err == nil {
		t.Error("a second node with the same state starts")
		if err := second.Stop(); err != nil {
			t.Error(err)
		}
	} else if want := fmt.Sprintf("state: %s/keeper is in use by another berthd", first.State); !strings.Contains(
		err.Error(), want) {
		t.Errorf("the error does not say %q: %v", want, err)
	}
	if got := c.Sh("echo lives"); got != "lives" {
		t.Errorf("the container: %q", got)
	}
}

// TestAKeeperElsewhereIsNamed: a service starts the keeper, for another state directory than the configuration's.
func TestAKeeperElsewhereIsNamed(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "it is about Berth's own directories")
	ctx, cancel := context.WithTimeout(t.Context(), node.Patience(time.Minute))
	defer cancel()
	n, err := node.Start(ctx, node.Options{Args: []string{"--keeper-binary", "none"}})
	if err == nil {
		t.Error("a node without a keeper starts")
		_ = n.Stop()
	} else if !strings.Contains(err.Error(), "state is ") || !strings.Contains(err.Error(), "/state/keeper") ||
		!strings.Contains(err.Error(), "to give it --dir ") {
		t.Errorf("the error does not say what the keeper has to be given: %v", err)
	}
}
