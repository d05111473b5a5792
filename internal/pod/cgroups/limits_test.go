package cgroups

import (
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/pod/record"
)

// TestAParentThatTheDriverDoesNotHaveIsRefused: a slice on a node with cgroupfs, and any other path
// on one with systemd.
func TestAParentThatTheDriverDoesNotHaveIsRefused(t *testing.T) {
	for _, c := range []struct {
		systemd bool
		parent  string
	}{
		{systemd: true, parent: "/kubepods/burstable"},
		{systemd: true, parent: "kube//pods.slice/x"},
		{systemd: false, parent: "kubepods.slice"},
	} {
		g := testCgroups(t, "/berth-pod-test-unused")
		g.systemd = c.systemd
		r := &record.Sandbox{ID: record.NewID(), Config: &model.SandboxConfig{CgroupParent: c.parent}}
		if err := g.Place(r); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", c, err)
		}
		if len(g.use.pods) > 0 {
			t.Errorf("%+v: the pod is counted", c)
		}
	}
}

// TestCgroupsAreNamedAsTheDriverNamesThem, both a pod's and a container's.
func TestCgroupsAreNamedAsTheDriverNamesThem(t *testing.T) {
	fs, systemd := &Driver{root: "/berth"}, &Driver{root: "berth.slice", systemd: true}
	for name, got := range map[string][2]string{
		"cgroupfs, container":      {fs.Path("/kube/pod1", "c"), "/kube/pod1/c"},
		"cgroupfs, its path":       {fs.Dir("/kube/pod1", "c"), "/kube/pod1/c"},
		"cgroupfs, pod of its own": {fs.own("p"), "/berth/p"},
		"systemd, container":       {systemd.Path("kube-pod1.slice", "c"), "kube-pod1.slice:cri-containerd:c"},
		"systemd, sandbox":         {systemd.SandboxPath("kube-pod1.slice", "p"), "kube-pod1.slice:berth:p"},
		"systemd, its path": {systemd.Dir("kube-pod1.slice", "c"),
			"/kube.slice/kube-pod1.slice/cri-containerd-c.scope"},
		"systemd, pod of its own": {systemd.own("p"), "/berth.slice/berth-p.slice"},
		"systemd, root slice":     {podSlice("-.slice", "p"), "p.slice"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %s and not %s", name, got[0], got[1])
		}
	}
}

// TestOverheadComesOnTopOfAPodsLimits, and on top of no limit there is none.
func TestOverheadComesOnTopOfAPodsLimits(t *testing.T) {
	got := Limits(&model.SandboxConfig{
		Resources: &model.Resources{CPUShares: 1024, MemoryLimit: 100, MemorySwap: 150, CPUQuota: 50000, CPUPeriod: 100000},
		Overhead:  &model.Resources{CPUShares: 1 << 20, MemoryLimit: 20, CPUQuota: 5000, CPUPeriod: 50000},
	})
	want := &model.Resources{CPUShares: maxShares, MemoryLimit: 120, MemorySwap: 170, CPUQuota: 60000, CPUPeriod: 100000}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the limits are %+v and not %+v", got, want)
	}
	if got := Limits(&model.SandboxConfig{Overhead: &model.Resources{MemoryLimit: 20}}); got.MemoryLimit != 0 {
		t.Errorf("a pod without a limit has one of %d bytes", got.MemoryLimit)
	}
	if got := Limits(&model.SandboxConfig{}); got != nil {
		t.Errorf("a pod of which nothing is said has the limits %+v", got)
	}
}

func TestLimitsThatOnlyContainersHaveAreRefused(t *testing.T) {
	for name, limits := range map[string]*model.Resources{
		"sandbox.resources.ulimits: ":   {Ulimits: []model.Ulimit{{Name: "nofile"}}},
		"sandbox.resources.diskQuota: ": {DiskQuota: map[string]string{"/": "1g"}},
	} {
		err := testCgroups(t, "/berth-pod-test-unused").
			Limit(&record.Sandbox{Config: &model.SandboxConfig{Resources: limits}})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
