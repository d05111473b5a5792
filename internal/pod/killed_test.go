package pod

import (
	"testing"
	"time"

	"berth/internal/model"
	"berth/internal/namespace"
)

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
