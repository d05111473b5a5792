package life

import (
	"errors"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

func TestAnUpdateChangesTheOOMScore(t *testing.T) {
	nodetest.BerthOnly(t, "it keeps the score of the start")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	update := func(c *nodetest.Container, score int64) {
		t.Helper()
		if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
			ContainerId: c.ID, Linux: &cri.LinuxContainerResources{OomScoreAdj: score},
		}); err != nil {
			t.Fatal(err)
		}
	}
	running := p.Run(nodetest.Sh("sleep 3600 & echo $! >/pid; wait"), func(c *cri.ContainerConfig) {
		c.Linux.Resources.OomScoreAdj = 100
	})
	nodetest.Eventually(t, 30*time.Second, "its child runs", func() error {
		if got := running.Sh("cat /pid || true"); got == "" {
			return errors.New("it has not said its ID")
		}
		return nil
	})
	update(running, 345)
	if got := running.Sh("cat /proc/1/oom_score_adj /proc/$(cat /pid)/oom_score_adj /proc/self/oom_score_adj"); got !=
		"345\n345\n345" {
		t.Errorf("got %q", got)
	}
	created := p.Create(func(c *cri.ContainerConfig) { c.Linux.Resources.OomScoreAdj = 100 })
	update(created, 456)
	created.Start()
	if got := created.Sh("cat /proc/1/oom_score_adj /proc/self/oom_score_adj"); got != "456\n456" {
		t.Errorf("got %q", got)
	}
	if got := created.Status().GetResources().GetLinux().GetOomScoreAdj(); got != 456 {
		t.Errorf("the status says %d", got)
	}
}

// TestAnUpdateThatTheKernelRefusesChangesNoScore: seen to fail when the scores of processes were changed before the
// kernel was asked for the limits.
func TestAnUpdateThatTheKernelRefusesChangesNoScore(t *testing.T) {
	nodetest.BerthOnly(t, "it keeps the score of the start")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run(func(c *cri.ContainerConfig) { c.Linux.Resources.OomScoreAdj = 100 })
	_, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{OomScoreAdj: 600, CpusetCpus: "4095"},
	})
	if err == nil {
		t.Fatal("processor 4095 was given")
	}
	if got := c.Sh("cat /proc/1/oom_score_adj /proc/self/oom_score_adj"); got != "100\n100" {
		t.Errorf("after %v the scores are %q", err, got)
	}
	if got := c.Status().GetResources().GetLinux(); got.GetOomScoreAdj() != 100 || got.GetCpusetCpus() != "" {
		t.Errorf("after %v the status says %v", err, got)
	}
}

// TestAnUpdateThatSaysTheSameOOMScoreChangesNone: a kubelet sends the score with each change of the limits. A program
// may have raised the score of a process of its own, as PostgreSQL does; it keeps that with another score too. Seen to
// fail where each update gave all processes the score.
func TestAnUpdateThatSaysTheSameOOMScoreChangesNone(t *testing.T) {
	n := nodetest.Shared(t)
	const script = "sh -c 'echo 700 >/proc/self/oom_score_adj; echo $$ >/pid; sleep 3600; :' & wait"
	c := nodetest.RunPod(t, n).Run(nodetest.Sh(script), func(c *cri.ContainerConfig) {
		c.Linux.Resources.OomScoreAdj = 100
	})
	nodetest.Eventually(t, 30*time.Second, "its child runs", func() error {
		if got := c.Sh("cat /pid || true"); got == "" {
			return errors.New("it has not said its ID")
		}
		return nil
	})
	if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{CpuShares: 512, OomScoreAdj: 100},
	}); err != nil {
		t.Fatal(err)
	}
	if got := c.Sh("cat /proc/1/oom_score_adj /proc/$(cat /pid)/oom_score_adj"); got != "100\n700" {
		t.Errorf("got %q", got)
	}
	if got := c.Status().GetResources().GetLinux(); got.GetOomScoreAdj() != 100 || got.GetCpuShares() != 512 {
		t.Errorf("the status says %v", got)
	}
	if nodetest.Containerd() { // it changes no score
		return
	}
	if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{OomScoreAdj: 345},
	}); err != nil {
		t.Fatal(err)
	}
	if got := c.Sh("cat /proc/1/oom_score_adj /proc/$(cat /pid)/oom_score_adj"); got != "345\n700" {
		t.Errorf("with another score, got %q", got)
	}
}
