package cgroups

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/asroot"
	"berth/internal/cgroup"
	"berth/internal/model"
	"berth/internal/pod/background"
	"berth/internal/pod/record"
	"berth/internal/state"
)

// testCgroups are those of a node with a root of its own.
func testCgroups(t *testing.T, root string) *Driver {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var work background.Group
	t.Cleanup(func() {
		cancel()
		work.Close()
	})
	return New(ctx, Config{Root: root, Records: t.TempDir(), Background: &work, Log: slog.New(slog.DiscardHandler)})
}

// A cgroup that came with a pod goes with the last pod that lives below it, and one that was there before stays.
func TestACgroupGoesWithTheLastPodBelowIt(t *testing.T) {
	asroot.Need(t, "cgroups")
	host, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/berth-pod-test-%d", os.Getpid())
	g := testCgroups(t, root)
	make := func(cgroup string) {
		if err := host.Create(cgroup); err != nil {
			t.Fatal(err)
		}
	}
	place := func(id, parent string) *record.Sandbox {
		r := &record.Sandbox{ID: id, Config: &model.SandboxConfig{CgroupParent: parent}}
		if err := g.Place(r); err != nil {
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
	for _, s := range []*record.Sandbox{one, two, same} {
		if s.OwnedCgroup != root+"/before/slice" {
			t.Errorf("pod %s owns %q", s.ID, s.OwnedCgroup)
		}
	}
	if alone.OwnedCgroup != "" {
		t.Errorf("a pod owns %q, which was there", alone.OwnedCgroup)
	}
	g.Leave(one)
	there(root+"/before/slice/one", false)
	there(root+"/before/slice", true)
	g.Leave(two)
	there(root+"/before/slice/two", true)
	for range 2 { // what is called again counts once
		g.Leave(alone)
	}
	there(root+"/before/slice", true)
	g.Leave(same)
	there(root+"/before/slice", false)
	there(root+"/before", true)
	if len(g.use.below)+len(g.use.owned) != 0 {
		t.Errorf("still counted: %v, %v", g.use.below, g.use.owned)
	}
}

// TestNoNodeRemovesTheCgroupsOfAnother: two that run pods below one cgroup which neither has made for itself (a
// kubelet's, or one that the first pod came with) leave each other's alone, empty as they may be, and what is left goes
// with the last of them. It was seen to fail with cgroups removed with all that is in them.
func TestNoNodeRemovesTheCgroupsOfAnother(t *testing.T) {
	asroot.Need(t, "cgroups")
	host, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/berth-pod-test-two-%d", os.Getpid())
	t.Cleanup(func() {
		if err := host.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	if err := host.Create(root); err != nil {
		t.Fatal(err)
	}
	one, two := testCgroups(t, root+"/one"), testCgroups(t, root+"/two")
	place := func(g *Driver, config model.SandboxConfig) *record.Sandbox {
		s := &record.Sandbox{ID: record.NewID(), Config: &config}
		if err := g.Place(s); err != nil {
			t.Fatal(err)
		}
		if err := host.Create(s.CgroupParent); err != nil {
			t.Fatal(err)
		}
		return s
	}
	there := func(s *record.Sandbox) {
		t.Helper()
		if !host.Exists(s.CgroupParent) {
			t.Errorf("%s is gone", s.CgroupParent)
		}
	}
	parent := root + "/kubepods/burstable"
	first := place(one, model.SandboxConfig{CgroupParent: parent + "/pod1"})
	below := place(two, model.SandboxConfig{CgroupParent: parent + "/pod2"})
	inside := place(two, model.SandboxConfig{CgroupParent: parent + "/pod1/of-the-other"})
	own := place(two, model.SandboxConfig{CgroupParent: parent, OwnCgroup: true})
	plain, plainOfTwo := place(one, model.SandboxConfig{}), place(two, model.SandboxConfig{})
	for _, s := range []*record.Sandbox{first, plain} {
		one.Leave(s)
	}
	for _, s := range []*record.Sandbox{below, inside, own, plainOfTwo} {
		there(s)
	}
	if host.Exists(plain.CgroupParent) {
		t.Errorf("%s of a pod that is gone is there", plain.CgroupParent)
	}
	// What was left is on record: another berthd with this root finishes it, once it can be.
	if entries, err := os.ReadDir(one.left.Dir); err != nil || len(entries) != 1 || entries[0].Name() != first.ID {
		t.Errorf("on record are %v (%v)", entries, err)
	}
	for _, s := range []*record.Sandbox{below, inside, own, plainOfTwo} {
		two.Leave(s)
	}
	again := testCgroups(t, root+"/one")
	again.left = one.left
	again.Reconcile(nil)
	if host.Exists(root + "/kubepods") {
		t.Error("what came with the first pod is there after the last")
	}
	if entries, _ := os.ReadDir(again.left.Dir); len(entries) > 0 {
		t.Errorf("on record are still %v", entries)
	}
}

// TestOnlyWhatIsOnRecordIsRemovedAtTheStart: cgroups below the node's root that bear the IDs of pods of another node
// stay, and that of a pod whose record cannot be read goes. It was seen to fail with all removed that look like a
// pod's.
func TestOnlyWhatIsOnRecordIsRemovedAtTheStart(t *testing.T) {
	asroot.Need(t, "cgroups")
	host, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/berth-pod-test-start-%d", os.Getpid())
	t.Cleanup(func() {
		if err := host.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	g := testCgroups(t, root)
	theirs, torn, gone := record.NewID(), record.NewID(), record.NewID()
	for _, id := range []string{theirs, torn, gone} {
		if err := host.Create(path.Join(root, id, "container")); err != nil {
			t.Fatal(err)
		}
	}
	dir := path.Join(root, gone)
	if err := g.left.Save(gone, leftCgroups{PodID: gone, Dir: dir, Top: dir}); err != nil {
		t.Fatal(err)
	}
	// A record that was torn, and one that somebody has copied.
	for id, data := range map[string]string{strings.Repeat("a", 64): "{",
		strings.Repeat("b", 64): fmt.Sprintf(`{"podID":%q,"dir":"%s/%s","top":"%s"}`, theirs, root, theirs, root)} {
		if err := os.MkdirAll(g.left.Path(id), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(g.left.Path(id), "left.json"), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g.Reconcile([]state.Broken{{ID: torn}})
	for id, want := range map[string]bool{theirs: true, torn: false, gone: false} {
		if got := host.Exists(path.Join(root, id)); got != want {
			t.Errorf("%s is there: %v", id, got)
		}
	}
	if entries, _ := os.ReadDir(g.left.Dir); len(entries) > 0 {
		t.Errorf("on record are still %v", entries)
	}
}

// TestABusyCgroupIsOnRecordUntilItIsRemoved: a berthd that is killed meanwhile leaves that to the next one.
func TestABusyCgroupIsOnRecordUntilItIsRemoved(t *testing.T) {
	asroot.Need(t, "cgroups")
	host, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/berth-pod-test-busy-%d", os.Getpid())
	g := testCgroups(t, root)
	s := &record.Sandbox{ID: record.NewID(), Config: &model.SandboxConfig{}}
	if err := host.Create(root); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	if err := g.Place(s); err != nil {
		t.Fatal(err)
	}
	if err := host.Create(s.CgroupParent); err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("sleep", "3600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}
	defer end()
	for _, dir := range host.Dirs(s.CgroupParent) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, sleep.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	g.Leave(s)
	if _, err := os.Stat(filepath.Join(g.left.Path(s.ID), "left.json")); err != nil || !host.Exists(s.CgroupParent) {
		t.Fatalf("a cgroup with a process in it is there: %v, and on record: %v", host.Exists(s.CgroupParent), err)
	}
	end()
	for deadline := time.Now().Add(time.Minute); host.Exists(s.CgroupParent) ||
		g.recorded(s.ID); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the cgroup is there: %v, on record: %v", host.Exists(s.CgroupParent), g.recorded(s.ID))
		}
	}
}

// recorded tells whether a pod's cgroups are to be removed.
func (g *Driver) recorded(id string) bool {
	_, err := os.Stat(g.left.Path(id))
	return err == nil
}

// TestACgroupThatAContainerHasLeftIsRemovedWithIt: the cgroups of others beside it are not. It was seen to fail without
// its removal by berthd: the pod's cgroup stayed for good then.
func TestACgroupThatAContainerHasLeftIsRemovedWithIt(t *testing.T) {
	asroot.Need(t, "cgroups")
	host, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/berth-pod-test-left-%d", os.Getpid())
	t.Cleanup(func() {
		if err := host.Remove(context.Background(), root); err != nil {
			t.Error(err)
		}
	})
	g := testCgroups(t, "/berth-pod-test-unused")
	s := &record.Sandbox{ID: record.NewID(), Config: &model.SandboxConfig{CgroupParent: root + "/burstable/pod1"}}
	if err := g.Place(s); err != nil {
		t.Fatal(err)
	}
	own, theirs := g.Dir(s.CgroupParent, record.NewID()), root+"/besteffort"
	for _, dir := range []string{own + "/exec", theirs} {
		if err := host.Create(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.RemoveContainer(t.Context(), own); err != nil {
		t.Error(err)
	}
	if err := g.RemoveContainer(t.Context(), own); err != nil {
		t.Errorf("a second time: %v", err)
	}
	g.Leave(s)
	if host.Exists(root+"/burstable") || !host.Exists(theirs) {
		t.Errorf("the pod's cgroups are there: %v, and those of others: %v", host.Exists(root+"/burstable"),
			host.Exists(theirs))
	}
}
