package nri

import (
	"fmt"
	"slices"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// events are all that a plugin is told in the life of a pod with a container, in order.
var events = []string{
	"RunPodSandbox", "CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer", "UpdateContainer",
	"PostUpdateContainer", "UpdatePodSandbox", "PostUpdatePodSandbox", "StopContainer", "RemoveContainer",
	"StopPodSandbox", "RemovePodSandbox",
}

// joins is what a plugin is told first: all that is there.
const joins = "Synchronize"

// live runs a pod with a container, changes the limits of both, and removes them.
func live(t *testing.T, n *node.Node) {
	t.Helper()
	pod := nodetest.RunPod(t, n)
	c := pod.Run()
	if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{CpuShares: 77},
	}); err != nil {
		t.Errorf("update the container: %v", err)
	}
	if _, err := n.Runtime.UpdatePodSandboxResources(nodetest.Context(t), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: pod.ID, Resources: &cri.LinuxContainerResources{CpuShares: 88},
	}); err != nil {
		t.Errorf("update the pod: %v", err)
	}
	if got := c.Sh("echo lives"); got != "lives" {
		t.Errorf("the container said %q", got)
	}
	c.Stop(0)
	c.Remove()
	pod.Remove()
}

// TestAPluginThatHangsOrEndsInAnyCallHurtsNobody has a plugin hang, or its connection end, as it joins and in each of
// the events of a pod's life. The pod lives as without the plugin, but for the time that the one request has; another
// plugin is told of everything once; and nothing is left.
func TestAPluginThatHangsOrEndsInAnyCallHurtsNobody(t *testing.T) {
	n := start(t, "")
	nodetest.Pull(t, n, node.Busybox)
	other := connect(t, n, "20-other", &plugin{})
	for _, hangs := range []bool{true, false} {
		for _, event := range append([]string{joins}, events...) {
			name := map[bool]string{true: "hangs", false: "ends"}[hangs] + " in " + event
			resume := make(chan struct{})
			p := &plugin{}
			p.refuse = func(now string) error {
				switch {
				case now != event:
				case hangs:
					<-resume
				default:
					p.stub.Stop()
				}
				return nil
			}
			connect(t, n, "10-faulty", p)
			already := len(other.story())
			begin := time.Now()
			live(t, n)
			took, waits := time.Since(begin), hangs && event != joins
			if took > timeout+node.Patience(12*time.Second) || waits && took < timeout {
				t.Errorf("%s: it took %v, where a request has %v", name, took, timeout)
			}
			select {
			case <-p.closed:
			case <-time.After(node.Patience(12 * time.Second)):
				t.Errorf("%s: the plugin is still connected", name)
			}
			close(resume)
			if got := withoutNames(other.story()[already:]); !slices.Equal(got, events) {
				t.Errorf("%s: the other plugin was told %q", name, got)
			}
		}
	}
	if left, err := n.Settled(12 * time.Second); err != nil || left.Count() > 0 {
		t.Errorf("of the pods there is left: %v, %v", left, err)
	}
}

// withoutNames are events without the pods and containers that they were about.
func withoutNames(story []string) (events []string) {
	for _, line := range story {
		var event string
		_, _ = fmt.Sscan(line, &event)
		events = append(events, event)
	}
	return events
}
