package pod

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"berth/internal/cgroup"
	"berth/internal/model"
)

// A cgroup that came with a pod goes with the last pod that lives below it, and one that was there before stays.
func TestACgroupGoesWithTheLastPodBelowIt(t *testing.T) {
	host, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/berth-pod-test-%d", os.Getpid())
	m := &Manager{
		log: slog.New(slog.DiscardHandler), ctx: context.Background(), cfg: Config{CgroupRoot: root},
		cgroups: cgroupUse{below: map[string]int{}, owned: map[string]int{}},
	}
	make := func(cgroup string) {
		if err := host.Create(cgroup); err != nil {
			t.Fatal(err)
		}
	}
	place := func(id, parent string) *SandboxRecord {
		r := &SandboxRecord{ID: id, Config: &model.SandboxConfig{CgroupParent: parent}}
		if err := m.placeCgroup(r); err != nil {
			t.Fatal(err)
		}
		make(r.CgroupParent)
		return r
	}
	there := func(cgroup string, want bool) {
		t.Helper()
		if host.Exists(cgroup) != want {
			t.Errorf("%s is there: %v", cgroup, !want)
		}
	}
	make(root + "/before")
	defer func() {
		if err := host.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	}()
	one := place("one", root+"/before/slice/one")
	two := place("two", root+"/before/slice/two")
	same := place("same", root+"/before/slice/two")
	alone := place("alone", root+"/before")
	for _, r := range []*SandboxRecord{one, two, same} {
		if r.OwnedCgroup != root+"/before/slice" {
			t.Errorf("pod %s owns %q", r.ID, r.OwnedCgroup)
		}
	}
	if alone.OwnedCgroup != "" {
		t.Errorf("a pod owns %q, which was there", alone.OwnedCgroup)
	}
	m.leaveCgroup(one)
	there(root+"/before/slice/one", false)
	there(root+"/before/slice", true)
	m.leaveCgroup(two)
	there(root+"/before/slice/two", true)
	m.leaveCgroup(alone)
	there(root+"/before/slice", true)
	m.leaveCgroup(same)
	there(root+"/before/slice", false)
	there(root+"/before", true)
	if len(m.cgroups.below)+len(m.cgroups.owned) != 0 {
		t.Errorf("still counted: %v, %v", m.cgroups.below, m.cgroups.owned)
	}
}
