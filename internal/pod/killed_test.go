package pod

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/rootfs"
)

// TestARebootedContainerHasAllItsMounts, also if a berthd was killed while it mounted them again. Seen to fail when a
// root file system that is mounted stood for all.
func TestARebootedContainerHasAllItsMounts(t *testing.T) {
	n := newMemoryNode(t)
	pod, err := n.RunSandbox(t.Context(), podConfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.CreateContainer(t.Context(), pod, serverConfig())
	if err != nil {
		t.Fatal(err)
	}
	mounts := func() (all []string) {
		for _, thing := range n.host.left() {
			if strings.HasPrefix(thing, "mount ") {
				all = append(all, thing)
			}
		}
		return all
	}
	before := mounts()
	image := "mount " + rootfs.Path(n.dirs.Image(id, 0))
	if !slices.Contains(before, image) {
		t.Fatalf("%s is not among %q", image, before)
	}
	_ = n.Close()
	n.host.forget(image)
	n.restart()
	if after := mounts(); !slices.Equal(after, before) {
		t.Errorf("mounted are %q, and were %q", after, before)
	}
	if err := n.RemoveSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.wantNothing("after its removal")
}

// TestABerthdThatIsKilledInACallLeavesNothing: what the next one finds can be stopped and removed, wherever the call
// was.
func TestABerthdThatIsKilledInACallLeavesNothing(t *testing.T) {
	var pod, id string
	running := func(n *memoryNode) { pod, id = n.run() }
	broken := func(n *memoryNode) {
		running(n)
		n.host.forget("namespace " + n.dirs.Namespaces(pod).Path(namespace.Network))
	}
	for name, c := range map[string]struct {
		prepare func(*memoryNode)
		act     func(*memoryNode) error
	}{
		"StartPodSandbox": {broken, func(n *memoryNode) error { return n.StartSandbox(t.Context(), pod) }},
		"StopPodSandbox":  {running, func(n *memoryNode) error { return n.StopSandbox(t.Context(), pod) }},
		"RemoveContainer": {running, func(n *memoryNode) error { return n.RemoveContainer(t.Context(), id) }},
		"StopContainer":   {running, func(n *memoryNode) error { return n.StopContainer(t.Context(), id, time.Minute) }},
		"UpdateContainerResources": {running, func(n *memoryNode) error {
			return n.UpdateContainerResources(t.Context(), id,
				&model.Resources{MemoryLimit: 1 << 30, DiskQuota: map[string]string{"/": "20m", "/named": "5m"}}, nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			eachCall(t, true, c.prepare, c.act, func(n *memoryNode, what string, _ bool, _ error) {
				n.restart()
				if err := n.StopContainer(t.Context(), id, time.Minute); err != nil {
					t.Errorf("%s: stop the container: %v", what, err)
				}
				if _, c := n.index.ByID(id); c != nil && n.status(id).State != model.ContainerExited {
					t.Errorf("%s: the container is %s after its stop", what, n.status(id).State)
				}
				if err := n.StopSandbox(t.Context(), pod); err != nil {
					t.Errorf("%s: stop the pod: %v", what, err)
				}
				if err := n.RemoveSandbox(t.Context(), pod); err != nil {
					t.Errorf("%s: remove the pod: %v", what, err)
				}
				n.wantNothing(what)
			})
		})
	}
}
