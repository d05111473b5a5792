package kubelet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestResourcesBecomeLimits(t *testing.T) {
	t.Parallel()
	p := shared(t).run(t, manifest("resources",
		sh("burstable", sleep, limited("cpu=100m,memory=16Mi", "cpu=500m,memory=64Mi")), sh("free", sleep)))
	now := p.running()
	if now.Status.QOSClass != v1.PodQOSBurstable {
		t.Errorf("its class is %s", now.Status.QOSClass)
	}
	if got := p.cgroup("burstable", "memory.limit_in_bytes", "memory.max"); got != "67108864" {
		t.Errorf("memory limit %s", got)
	}
	if got := p.cgroup("burstable", "cpu.cfs_quota_us", "cpu.max"); got != "50000" && got != "50000 100000" {
		t.Errorf("CPU quota %s", got)
	}
	if got := p.cgroup("burstable", "cpu.shares", "cpu.weight"); got != "102" && got != "17" && got != "4" {
		t.Errorf("CPU shares %s", got)
	}
	if got := p.cgroup("free", "cpu.cfs_quota_us", "cpu.max"); got != "-1" && got != "max 100000" {
		t.Errorf("the container without limits has a CPU quota of %s", got)
	}
	want := amounts("cpu=100m,memory=16Mi")
	r := status(now, "burstable").Resources
	if r == nil || !r.Requests.Cpu().Equal(want["cpu"]) || r.Limits.Memory().Value() != 64<<20 {
		t.Errorf("the status says %+v", r)
	}
}

func TestPodLevelResources(t *testing.T) {
	t.Parallel()
	spec := manifest("podlevel", sh("one", sleep), sh("two", sleep))
	spec.Spec.Resources = ptr(requirements("cpu=100m,memory=32Mi", "cpu=300m,memory=96Mi"))
	p := shared(t).run(t, spec)
	now := p.running()
	if now.Status.QOSClass != v1.PodQOSBurstable {
		t.Errorf("its class is %s", now.Status.QOSClass)
	}
	for _, name := range []string{"one", "two"} {
		if got := p.cgroup(name, "../memory.limit_in_bytes", "../memory.max"); got != "100663296" {
			t.Errorf("the pod's memory limit, above %s, is %s", name, got)
		}
	}
}

func TestAContainerOutOfMemoryIsReportedSo(t *testing.T) {
	t.Parallel()
	spec := manifest("oom",
		sh("hungry", "sleep 1; tail /dev/zero", limited("memory=16Mi", "memory=24Mi")),
		sh("child", "sleep 1; sh -c 'tail /dev/zero; exit 0'; exit 12", limited("memory=16Mi", "memory=24Mi")),
		sh("modest", "sleep 4; exit 0", limited("memory=16Mi", "memory=24Mi")))
	spec.Spec.RestartPolicy = v1.RestartPolicyNever
	p := shared(t).run(t, spec)
	now := p.ended(v1.PodFailed)
	if s := status(now, "hungry").State.Terminated; s.Reason != "OOMKilled" || s.ExitCode != 137 {
		t.Errorf("hungry: %+v", s)
	}
	if s := status(now, "child").State.Terminated; s.ExitCode == 0 {
		t.Errorf("child: %+v", s)
	}
	if s := status(now, "modest").State.Terminated; s.Reason != "Completed" || s.ExitCode != 0 {
		t.Errorf("modest: %+v", s)
	}
	eventually(t, 10*time.Second, "a restart after it runs as before", func() error {
		if r := p.container("hungry").Reason; r != "OOMKilled" {
			return fmt.Errorf("the runtime says %q", r)
		}
		return nil
	})
}

// TestResizeInPlace changes the manifest of a running pod: its UID stays, so the kubelet resizes it where it is.
func TestResizeInPlace(t *testing.T) {
	t.Parallel()
	policy := func(memory v1.ResourceResizeRestartPolicy) func(*v1.Container) {
		return func(c *v1.Container) {
			c.ResizePolicy = []v1.ContainerResizePolicy{
				{ResourceName: v1.ResourceCPU, RestartPolicy: v1.NotRequired},
				{ResourceName: v1.ResourceMemory, RestartPolicy: memory},
			}
		}
	}
	begin := limited("cpu=100m,memory=16Mi", "cpu=200m,memory=32Mi")
	spec := manifest("resize",
		sh("stays", sleep, begin, policy(v1.NotRequired)), sh("restarts", sleep, begin, policy(v1.RestartContainer)))
	p := shared(t).run(t, spec)
	before := p.running()
	for i := range spec.Spec.Containers {
		spec.Spec.Containers[i].Resources = requirements("cpu=200m,memory=32Mi", "cpu=400m,memory=64Mi")
	}
	p.write()
	now := p.until(60*time.Second, "both containers have their new resources", func(now *v1.Pod) error {
		for _, name := range []string{"stays", "restarts"} {
			if s := status(now, name); s.State.Running == nil {
				return fmt.Errorf("%s: %+v", name, s.State)
			}
			if err := allotted(now, name, "cpu=400m,memory=64Mi"); err != nil {
				return err
			}
		}
		return nil
	})
	if s := status(now, "stays"); s.ContainerID != status(before, "stays").ContainerID || s.RestartCount != 0 {
		t.Errorf("stays: %+v", s)
	}
	if s := status(now, "restarts"); s.ContainerID == status(before, "restarts").ContainerID || s.RestartCount != 1 {
		t.Errorf("restarts: %+v", s)
	}
	for _, name := range []string{"stays", "restarts"} {
		if got := p.cgroup(name, "memory.limit_in_bytes", "memory.max"); got != "67108864" {
			t.Errorf("%s: memory limit %s", name, got)
		}
		if got := p.cgroup(name, "cpu.cfs_quota_us", "cpu.max"); got != "40000" && got != "40000 100000" {
			t.Errorf("%s: CPU quota %s", name, got)
		}
	}
	if got := p.cgroup("stays", "../memory.limit_in_bytes", "../memory.max"); got != "134217728" {
		t.Errorf("the pod's memory limit is %s", got)
	}
	for _, c := range now.Status.Conditions {
		if strings.HasPrefix(string(c.Type), "PodResize") {
			t.Errorf("condition %+v", c)
		}
	}
	// And down again.
	spec.Spec.Containers[0].Resources = requirements("cpu=50m,memory=16Mi", "cpu=100m,memory=48Mi")
	p.write()
	p.until(60*time.Second, "the first has less again", func(now *v1.Pod) error {
		return allotted(now, "stays", "cpu=100m,memory=48Mi")
	})
	if got := p.cgroup("stays", "memory.limit_in_bytes", "memory.max"); got != "50331648" {
		t.Errorf("memory limit %s", got)
	}
}
