package nri

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
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

// TestAClientThatGoesAwayTakesNoEndFromPlugins: each plugin is told once that something stops or is removed, also if
// the client goes while a plugin before it is being told. Seen to fail where the event ended with the client's call.
func TestAClientThatGoesAwayTakesNoEndFromPlugins(t *testing.T) {
	n := start(t, "")
	nodetest.Pull(t, n, node.Busybox)
	var hangs atomic.Value // the event in which the first plugin waits
	hangs.Store("")
	reached, resume := make(chan struct{}), make(chan struct{})
	connect(t, n, "10-waits", &plugin{refuse: func(event string) error {
		if hangs.CompareAndSwap(event, "") {
			reached <- struct{}{}
			<-resume
		}
		return nil
	}})
	other := connect(t, n, "20-other", &plugin{})
	pod := nodetest.RunPod(t, n)
	c := pod.Run()
	for _, end := range []struct {
		event string
		call  func(context.Context) error
	}{
		{"StopContainer", func(ctx context.Context) error {
			_, err := n.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.ID})
			return err
		}},
		{"RemoveContainer", func(ctx context.Context) error {
			_, err := n.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.ID})
			return err
		}},
		{"StopPodSandbox", func(ctx context.Context) error {
			_, err := n.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.ID})
			return err
		}},
		{"RemovePodSandbox", func(ctx context.Context) error {
			_, err := n.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.ID})
			return err
		}},
	} {
		hangs.Store(end.event)
		ctx, cancel := context.WithCancel(nodetest.Context(t))
		gone := make(chan error, 1)
		go func() { gone <- end.call(ctx) }()
		<-reached
		cancel()
		<-gone
		time.Sleep(50 * time.Millisecond) // berthd learns a little later that the client has gone
		resume <- struct{}{}
		nodetest.Eventually(t, node.Patience(30*time.Second), end.event+" by another client", func() error {
			return end.call(nodetest.Context(t))
		})
		if told := other.told(end.event); told != 1 {
			t.Errorf("%s: the other plugin was told %d times", end.event, told)
		}
	}
}
