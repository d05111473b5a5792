package node

import (
	"context"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestAnAccountedNodesTimeIsThatOfAllItsProcesses: of the daemon, of the keeper, and of what a pod has run and removed.
func TestAnAccountedNodesTimeIsThatOfAllItsProcesses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), Patience(time.Minute))
	defer cancel()
	n, err := Start(ctx, Options{Accounted: true})
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			t.Error(n.Stop())
		}
	}()
	used := func() CPUUsage {
		t.Helper()
		used, err := n.CPUUsed()
		if err != nil {
			t.Fatal(err)
		}
		return used
	}
	keeper, ok := n.KeeperPID()
	if !ok {
		t.Fatal("there is no keeper")
	}
	for what, pid := range map[string]int{"berthd": n.PID(), "the keeper": keeper} {
		p, err := readProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		within := false
		for _, path := range p.Cgroups {
			within = within || path == n.accountCgroup()
		}
		if !within {
			t.Errorf("%s is in %v and not in %s", what, p.Cgroups, n.accountCgroup())
		}
	}
	if _, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: Busybox}}); err != nil {
		t.Fatal(err)
	}
	before := used()
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "busy", Namespace: "account", Uid: "busy"},
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: n.PodCgroup("busy")},
	}
	pod, err := n.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	container, err := n.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: pod.PodSandboxId, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "busy"}, Image: &cri.ImageSpec{Image: Busybox},
			Command: []string{"sh", "-c", "while :; do :; done"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	start := &cri.StartContainerRequest{ContainerId: container.ContainerId}
	if _, err := n.Runtime.StartContainer(ctx, start); err != nil {
		t.Fatal(err)
	}
	const busy = 200 * time.Millisecond
	for used().Minus(before).Total < busy {
		if ctx.Err() != nil {
			t.Fatalf("a busy container is not seen: %+v", used().Minus(before))
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := n.RemoveAll(ctx); err != nil {
		t.Fatal(err)
	}
	if spent := used().Minus(before); spent.Total < busy || spent.User < busy/2 { // a shell's loop is hardly in the kernel
		t.Errorf("after the pod's removal it is %+v", spent)
	}
	stopped = true
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.CPUUsed(); err == nil {
		t.Error("the daemon's cgroup is still there")
	}
}
