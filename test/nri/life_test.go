package nri

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// setEnv is a plugin's answer that sets a variable.
func setEnv(key, value string) func(*api.PodSandbox, *api.Container) (
	*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return func(*api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		adjust := &api.ContainerAdjustment{}
		adjust.AddEnv(key, value)
		return adjust, nil, nil
	}
}

func TestAPluginIsToldOfTheLifeOfPodsAndContainersInOrder(t *testing.T) {
	n := start(t, "")
	p := connect(t, n, "10-env", &plugin{create: setEnv("FROM", "plugin")})
	pod := nodetest.RunPod(t, n)
	name := pod.Config.Metadata.Name
	c := pod.Run(nodetest.Sh("echo $FROM; exec sleep 1000"))
	c.WaitLog("plugin")
	if got := c.Sh("echo $FROM"); got != "plugin" {
		t.Errorf("an exec has %q", got)
	}
	if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{CpuShares: 512},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Runtime.UpdatePodSandboxResources(nodetest.Context(t), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: pod.ID, Resources: &cri.LinuxContainerResources{CpuShares: 512},
	}); err != nil {
		t.Fatal(err)
	}
	c.Stop(0)
	c.Remove()
	ended := pod.Run(nodetest.Sh("true"))
	ended.WaitExit()
	pod.Remove()
	container := name + "/" + c.Config.Metadata.Name
	second := name + "/" + ended.Config.Metadata.Name
	want := []string{
		"Synchronize", "RunPodSandbox " + name, "CreateContainer " + container, "PostCreateContainer " + container,
		"StartContainer " + container, "PostStartContainer " + container, "UpdateContainer " + container,
		"PostUpdateContainer " + container, "UpdatePodSandbox " + name, "PostUpdatePodSandbox " + name,
		"StopContainer " + container, "RemoveContainer " + container, "CreateContainer " + second,
		"PostCreateContainer " + second, "StartContainer " + second, "PostStartContainer " + second,
		"StopContainer " + second, "StopPodSandbox " + name, "RemoveContainer " + second, "RemovePodSandbox " + name,
	}
	got := p.story()
	// The end of the second container is told by itself, and may be told before its start has been.
	if !slices.Equal(sortStops(got), sortStops(want)) {
		t.Errorf("it was told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, event := range []string{"RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"} {
		if ips := p.pods[event].GetIps(); len(ips) != 1 {
			t.Errorf("at %s the pod's addresses are %q", event, ips)
		}
	}
	if state := p.saw("PostStartContainer").GetState(); state != api.ContainerState_CONTAINER_RUNNING &&
		state != api.ContainerState_CONTAINER_STOPPED {
		t.Errorf("a started container is %v", state)
	}
}

// sortStops puts each StopContainer right before the next event that is not one.
func sortStops(events []string) []string {
	out := slices.DeleteFunc(slices.Clone(events), func(e string) bool { return strings.HasPrefix(e, "StopContainer") })
	for _, e := range events {
		if strings.HasPrefix(e, "StopContainer") {
			out = append(out, e)
		}
	}
	return out
}

func TestAPluginsUpdatesOfContainersAreDone(t *testing.T) {
	n := start(t, "")
	var first string
	p := &plugin{}
	limit := func(id string, bytes int64) []*api.ContainerUpdate {
		u := &api.ContainerUpdate{}
		u.SetContainerId(id)
		u.SetLinuxMemoryLimit(bytes)
		return []*api.ContainerUpdate{u}
	}
	p.create = func(*api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		if first == "" {
			return nil, nil, nil
		}
		return nil, limit(first, 70<<20), nil
	}
	p.update = func(_ *api.PodSandbox, c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
		own := limit(c.GetId(), r.GetMemory().GetLimit().GetValue()/2)
		return append(own, limit(first, 80<<20)...), nil
	}
	p.stop = func(*api.PodSandbox, *api.Container) ([]*api.ContainerUpdate, error) {
		return limit(first, 90<<20), nil
	}
	connect(t, n, "10-limits", p)
	pod := nodetest.RunPod(t, n)
	one := pod.Run()
	first = one.ID
	two := pod.Run()
	wantLimit := func(c *nodetest.Container, want int64, after string) {
		t.Helper()
		got := c.Sh("cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max")
		status := c.Status().GetResources().GetLinux().GetMemoryLimitInBytes()
		if got != strconv.FormatInt(want, 10) || status != want {
			t.Errorf("%s the limit is %s, and its status says %d, want %d", after, got, status, want)
		}
	}
	wantLimit(one, 70<<20, "after another container was created")
	if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: two.ID, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 200 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	wantLimit(two, 100<<20, "after its update, which a plugin halves,")
	wantLimit(one, 80<<20, "after another container's update")
	two.Stop(0)
	wantLimit(one, 90<<20, "after another container's stop")
	if failed, err := p.stub.UpdateContainers(limit(one.ID, 60<<20)); err != nil || len(failed) > 0 {
		t.Errorf("an update by itself: %v, %v", failed, err)
	}
	wantLimit(one, 60<<20, "after an update that nobody has asked for")
	// A plugin learns of an end later than it happens. The others of its updates are not lost with it.
	late := slices.Concat(limit("0123456789", 60<<20), limit(two.ID, 60<<20), limit(one.ID, 50<<20))
	if failed, err := p.stub.UpdateContainers(late); err != nil || len(failed) > 0 {
		t.Errorf("updates of containers that have ended or are not there: %v, %v", failed, err)
	}
	wantLimit(one, 50<<20, "after an update among those of containers that are gone")
	if _, err := p.stub.UpdateContainers(limit(one.ID, -7)); err == nil {
		t.Error("an update that cannot be done was done")
	}
	ignored := limit(one.ID, -7)
	ignored[0].SetIgnoreFailure()
	if _, err := p.stub.UpdateContainers(ignored); err != nil {
		t.Errorf("an update whose failure is to be ignored: %v", err)
	}
}

func TestAPluginThatRefusesLeavesNothingBehind(t *testing.T) {
	n := start(t, "")
	first, refusing := &plugin{}, ""
	second := &plugin{refuse: func(event string) error {
		if event == refusing {
			return errors.New("not here")
		}
		return nil
	}}
	connect(t, n, "10-first", first)
	connect(t, n, "20-second", second)
	refusing = "RunPodSandbox"
	if _, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{
		Config: nodetest.PodConfig(n),
	}); err == nil || !strings.Contains(err.Error(), "not here") {
		t.Errorf("the pod's error is %v", err)
	}
	if first.told("StopPodSandbox") != 1 || first.told("RemovePodSandbox") != 1 {
		t.Errorf("the first plugin was told %q", first.story())
	}
	if left, err := n.Settled(12 * time.Second); err != nil || left.Count() > 0 {
		t.Errorf("of the pod there is left: %v, %v", left, err)
	}
	refusing = "CreateContainer"
	pod := nodetest.RunPod(t, n)
	nodetest.Pull(t, n, node.Busybox)
	if _, err := pod.TryCreate(); err == nil || !strings.Contains(err.Error(), "not here") {
		t.Errorf("the container's error is %v", err)
	}
	if first.told("StopContainer") != 1 || first.told("RemoveContainer") != 1 {
		t.Errorf("the first plugin was told %q", first.story())
	}
	list, err := n.Runtime.ListContainers(nodetest.Context(t), &cri.ListContainersRequest{})
	if err != nil || len(list.GetContainers()) > 0 {
		t.Errorf("there are %v, %v", list.GetContainers(), err)
	}
	refusing = "StartContainer"
	c := pod.Create()
	if err := c.TryStart(); err == nil || !strings.Contains(err.Error(), "not here") {
		t.Errorf("the start's error is %v", err)
	}
	if s := c.Status(); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetReason() != "StartError" {
		t.Errorf("the container is %v: %s", s.GetState(), s.GetReason())
	}
	refusing = "UpdateContainer"
	running := pod.Run()
	if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: running.ID, Linux: &cri.LinuxContainerResources{CpuShares: 77},
	}); err == nil || running.Status().GetResources().GetLinux().GetCpuShares() == 77 {
		t.Errorf("the update's error is %v", err)
	}
	refusing = "UpdatePodSandbox"
	if _, err := n.Runtime.UpdatePodSandboxResources(nodetest.Context(t), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: pod.ID, Resources: &cri.LinuxContainerResources{CpuShares: 77},
	}); err == nil {
		t.Error("the pod's update was done")
	}
}

func TestAPluginThatHangsIsCutOffAfterItsTime(t *testing.T) {
	n := start(t, "")
	hang := make(chan struct{})
	defer close(hang)
	p := connect(t, n, "10-hangs", &plugin{refuse: func(event string) error {
		if event == "CreateContainer" {
			<-hang
		}
		return nil
	}})
	other := connect(t, n, "20-other", &plugin{create: setEnv("FROM", "other")})
	pod := nodetest.RunPod(t, n)
	nodetest.Pull(t, n, node.Busybox)
	begin := time.Now()
	c := pod.Run()
	if took := time.Since(begin); took < timeout || took > timeout+node.Patience(12*time.Second) {
		t.Errorf("a container took %v, where the plugin has %v", took, timeout)
	}
	if got := c.Sh("echo $FROM"); got != "other" {
		t.Errorf("the other plugin set %q", got)
	}
	select {
	case <-p.closed:
	case <-time.After(node.Patience(12 * time.Second)):
		t.Error("the plugin that hangs is still connected")
	}
	pod.Run()
	if count := p.told("CreateContainer"); count != 1 {
		t.Errorf("after it was cut off it is told of a container: %d in all", count)
	}
	if other.told("PostStartContainer") != 2 {
		t.Errorf("the other was told %q", other.story())
	}
	var asked bool
	for _, timing := range info(t, c).Timings {
		asked = asked || timing.Step == "ask plugins"
	}
	if !asked {
		t.Error("the container's timings do not say how long plugins took")
	}
}

func TestAPluginThatDiesHurtsNobody(t *testing.T) {
	n := start(t, "")
	p := &plugin{}
	p.refuse = func(event string) error {
		if event == "CreateContainer" {
			p.stub.Stop()
		}
		return nil
	}
	connect(t, n, "10-dies", p)
	pod := nodetest.RunPod(t, n)
	if got := pod.Output("echo lives"); got != "lives\n" {
		t.Errorf("the container said %q", got)
	}
}

func TestPluginsKnowAllAfterARestartOfEitherSide(t *testing.T) {
	n := start(t, "")
	before := nodetest.RunPod(t, n)
	running := before.Run()
	created := before.Create()
	ended := before.Run(nodetest.Sh("true"))
	ended.WaitExit()
	check := func(p *plugin, when string, want ...string) {
		t.Helper()
		p.mu.Lock()
		defer p.mu.Unlock()
		slices.Sort(p.presentContainers)
		slices.Sort(want)
		if !slices.Equal(p.presentContainers, want) || len(p.presentPods) != 1 || p.presentPods[0] != before.ID {
			t.Errorf("%s it was told of %q and %q", when, p.presentPods, p.presentContainers)
		}
	}
	late := connect(t, n, "10-late", &plugin{create: setEnv("FROM", "late")})
	state := func(id string, s api.ContainerState) string { return id + " " + s.String() }
	check(late, "a plugin that joins late:", state(running.ID, api.ContainerState_CONTAINER_RUNNING),
		state(created.ID, api.ContainerState_CONTAINER_CREATED))
	changed := before.Run()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	<-late.closed
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	again := connect(t, n, "10-late", &plugin{})
	check(again, "after a restart of berthd:", state(running.ID, api.ContainerState_CONTAINER_RUNNING),
		state(changed.ID, api.ContainerState_CONTAINER_RUNNING), state(created.ID, api.ContainerState_CONTAINER_CREATED))
	if got := changed.Sh("echo $FROM"); got != "late" {
		t.Errorf("what a plugin has set is %q after a restart", got)
	}
	created.Start()
	running.Stop(0)
	before.Remove()
	for event, want := range map[string]int{
		"CreateContainer": 0, "StartContainer": 1, "StopContainer": 3, "RemoveContainer": 3, "StopPodSandbox": 1,
		"RemovePodSandbox": 1,
	} {
		if got := again.told(event); got != want {
			t.Errorf("it was told %d times of %s, want %d: %q", got, event, want, again.story())
		}
	}
}

// TestNoPluginMissesAContainer has plugins join while containers come: each is told of each, as one that is there or as
// one that is created, and no container waits for long.
func TestNoPluginMissesAContainer(t *testing.T) {
	n := startPatient(t, node.Lapse(time.Minute), "") // 8 plugins answer at once, and none is to be cut off
	pod := nodetest.RunPod(t, n)
	nodetest.Pull(t, n, node.Busybox)
	connect(t, n, "00-there", &plugin{})
	var ids []string
	made := make(chan struct{})
	go func() {
		defer close(made)
		for range 40 {
			if c, err := pod.TryCreate(); err == nil {
				ids = append(ids, c.ID)
			}
		}
	}()
	var joined []*plugin
	for i := range 8 {
		joined = append(joined, connect(t, n, fmt.Sprintf("%d0-joins", i+1), &plugin{}))
	}
	<-made
	if len(ids) != 40 {
		t.Fatalf("%d containers were made", len(ids))
	}
	for i, p := range joined {
		p.mu.Lock()
		for _, id := range ids {
			seen := p.created[id]
			for _, present := range p.presentContainers {
				if strings.HasPrefix(present, id) {
					seen++
				}
			}
			if seen != 1 {
				t.Errorf("plugin %d was told %d times of container %s", i, seen, id)
			}
		}
		p.mu.Unlock()
	}
}

func TestTheValidatorRefuses(t *testing.T) {
	n := start(t, "[nri.default_validator]\nenable = true\nreject_oci_hook_adjustment = true\n"+
		"required_plugins = [\"needed\"]\ntolerate_missing_plugins_annotation = \"vendor.com/tolerate\"\n")
	pod := nodetest.RunPod(t, n)
	nodetest.Pull(t, n, node.Busybox)
	hooks := false
	p := &plugin{create: func(*api.PodSandbox, *api.Container) (
		*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		adjust := &api.ContainerAdjustment{}
		if hooks {
			adjust.AddHooks(&api.Hooks{CreateRuntime: []*api.Hook{{Path: "/bin/true"}}})
		}
		return adjust, nil, nil
	}}
	if _, err := pod.TryCreate(); err == nil || !strings.Contains(err.Error(), "needed") {
		t.Errorf("without the plugin that is needed: %v", err)
	}
	connect(t, n, "10-needed", p)
	pod.Run()
	hooks = true
	if _, err := pod.TryCreate(); err == nil || !strings.Contains(err.Error(), "hook") {
		t.Errorf("a plugin that brings hooks: %v", err)
	}
	if list, err := n.Runtime.ListContainers(nodetest.Context(t), &cri.ListContainersRequest{}); err != nil ||
		len(list.GetContainers()) != 1 {
		t.Errorf("there are %v, %v", list.GetContainers(), err)
	}
}

// TestARequiredPluginHasToAnswer: NRI's library goes on without a plugin that hangs, and its validator counts it as
// present. Each step was seen to succeed without the answer, as with containerd. The name of the plugin may have its
// index: before, such a plugin was seen not to be required.
func TestARequiredPluginHasToAnswer(t *testing.T) {
	for _, name := range []string{"needed", "10-needed"} {
		t.Run(name, func(t *testing.T) { requireAnswers(t, name) })
	}
}

func requireAnswers(t *testing.T, name string) {
	n := startRequiring(t, name)
	run := func(edits ...nodetest.PodEdit) error { return tryRun(t, n, edits...) }
	annotate := func(key, value string) nodetest.PodEdit {
		return func(c *cri.PodSandboxConfig) { c.Annotations = map[string]string{key: value} }
	}
	joinHanging(t, n, "10-needed", "RunPodSandbox")
	wantSilent(t, name, run())
	joinHanging(t, n, "10-needed", "RunPodSandbox")
	if err := run(annotate("vendor.com/tolerate", "true")); err != nil {
		t.Errorf("a pod that can do without it: %v", err)
	}
	joinHanging(t, n, "10-needed", "CreateContainer")
	pod := nodetest.RunPod(t, n)
	_, err := pod.TryCreate()
	wantSilent(t, name, err)
	joinHanging(t, n, "10-needed", "StartContainer")
	wantSilent(t, name, pod.Create().TryStart())

	joinHanging(t, n, "10-needed", "")
	joinHanging(t, n, "20-other", "RunPodSandbox")
	if err := run(); err != nil {
		t.Errorf("a plugin that nobody requires hangs: %v", err)
	}
	joinHanging(t, n, "20-other", "RunPodSandbox")
	wantSilent(t, "other", run(annotate("required-plugins.noderesource.dev", `["other"]`)))
	if list, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{}); err != nil ||
		len(list.GetItems()) != 3 {
		t.Errorf("there are %v, %v", list.GetItems(), err)
	}
}

// TestARequiredPluginThatWasDroppedIsMissed: the library drops a plugin that does not answer, so that nobody asks it
// any more. The second pod, and the start of the second container, were seen to succeed.
func TestARequiredPluginThatWasDroppedIsMissed(t *testing.T) {
	n := startRequiring(t, "needed")
	joinHanging(t, n, "10-needed", "StartContainer")
	pod := nodetest.RunPod(t, n)
	first, second := pod.Create(), pod.Create()
	wantSilent(t, "needed", first.TryStart())
	wantSilent(t, "needed", second.TryStart())
	wantSilent(t, "needed", tryRun(t, n))
	// The plugin may be a container of this pod.
	if err := tryRun(t, n, func(c *cri.PodSandboxConfig) {
		c.Annotations = map[string]string{"vendor.com/tolerate/container.plugin": "true"}
	}); err != nil {
		t.Errorf("a pod of which one container can do without it: %v", err)
	}

	joinHanging(t, n, "20-needed", "")
	if err := pod.Create().TryStart(); err != nil {
		t.Errorf("another plugin has the name: %v", err)
	}
	if err := tryRun(t, n); err != nil {
		t.Errorf("another plugin has the name: %v", err)
	}
}

// TestARequiredPluginThatStaysConnectedIsNotMissed: it is asked again, but not about what it has not subscribed to.
// Without a look at the number of plugins, the pod was seen to be refused.
func TestARequiredPluginThatStaysConnectedIsNotMissed(t *testing.T) {
	n := startRequiring(t, "needed")
	hang := make(chan struct{})
	p := &patientPlugin{started: func() { <-hang }}
	p.connect(t, n, "10-needed")
	t.Cleanup(func() { close(hang) })
	c := nodetest.RunPod(t, n).Create()
	wantSilent(t, "needed", c.TryStart())
	if err := tryRun(t, n); err != nil {
		t.Errorf("the plugin is connected: %v", err)
	}
}

// startRequiring is a node whose containers need a plugin.
func startRequiring(t *testing.T, name string) *node.Node {
	t.Helper()
	n := start(t, fmt.Sprintf("[nri.default_validator]\nenable = true\nrequired_plugins = [%q]\n"+
		"tolerate_missing_plugins_annotation = \"vendor.com/tolerate\"\n", name))
	nodetest.Pull(t, n, node.Busybox)
	return n
}

// joinHanging has a plugin join that does not answer to one event.
func joinHanging(t *testing.T, n *node.Node, name, event string) {
	t.Helper()
	hang := make(chan struct{})
	connect(t, n, name, &plugin{refuse: func(now string) error {
		if now == event {
			<-hang
		}
		return nil
	}})
	t.Cleanup(func() { close(hang) })
}

// wantSilent expects a call to fail because a required plugin has not answered.
func wantSilent(t *testing.T, name string, err error) {
	t.Helper()
	nodetest.WantCode(t, err, codes.Unavailable)
	if err != nil && !strings.Contains(err.Error(), strconv.Quote(name)) {
		t.Errorf("the plugin is not named: %v", err)
	}
}

// tryRun runs a pod, which is removed with the test.
func tryRun(t *testing.T, n *node.Node, edits ...nodetest.PodEdit) error {
	t.Helper()
	config := nodetest.PodConfig(n, edits...)
	response, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{Config: config})
	if err == nil {
		nodetest.Adopt(t, n, response.PodSandboxId, config)
	}
	return err
}

// TestTheValidatorRefusesWhereNoPluginHasBeen: nobody has made a directory for plugins. It was seen to refuse nothing.
func TestTheValidatorRefusesWhereNoPluginHasBeen(t *testing.T) {
	nodetest.BerthOnly(t, "Debian's version is older than these plugins")
	n := nodetest.Start(t, node.Options{
		Tables: "[nri.default_validator]\nenable = true\nrequired_plugins = [\"needed\"]\n"})
	pod := nodetest.RunPod(t, n)
	nodetest.Pull(t, n, node.Busybox)
	if _, err := pod.TryCreate(); err == nil || !strings.Contains(err.Error(), "needed") {
		t.Errorf("without the plugin that is needed: %v", err)
	}
}

// TestAPluginGivesAContainerNoCgroupOfOthers: a container's cgroup is removed with it. The pod of one in the root could
// never be removed.
func TestAPluginGivesAContainerNoCgroupOfOthers(t *testing.T) {
	n := start(t, "")
	wanted := ""
	connect(t, n, "10-cgroup", &plugin{create: func(*api.PodSandbox, *api.Container) (
		*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		adjust := &api.ContainerAdjustment{}
		adjust.SetLinuxCgroupsPath(wanted)
		return adjust, nil, nil
	}})
	pod := nodetest.RunPod(t, n)
	nodetest.Pull(t, n, node.Busybox)
	others := []string{"/", n.CgroupRoot, pod.Config.Linux.CgroupParent}
	own := path.Join(pod.Config.Linux.CgroupParent, "own")
	if n.Systemd {
		others = []string{"-.slice::" + path.Base(n.CgroupRoot), path.Base(n.CgroupRoot) + "::" +
			path.Base(pod.Config.Linux.CgroupParent)}
		own = path.Base(pod.Config.Linux.CgroupParent) + ":berth:own"
	}
	for _, wanted = range others {
		_, err := pod.TryCreate()
		nodetest.WantCode(t, err, codes.FailedPrecondition)
		if !strings.Contains(err.Error(), "exists already") {
			t.Errorf("%s: %v", wanted, err)
		}
	}
	wanted = own
	created := pod.Create()
	_, err := pod.TryCreate()
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if !strings.Contains(err.Error(), created.ID[:12]) {
		t.Errorf("the cgroup of another container: %v", err)
	}
	created.Start()
	created.Stop(0)
	created.Remove()
	pod.Create().Start()
}

// patientLaunch gives plugins that berthd starts long enough on a busy machine.
const patientLaunch = "[nri]\nplugin_registration_timeout = \"60s\"\nplugin_request_timeout = \"60s\"\n"

func TestPluginsThatBerthdStarts(t *testing.T) {
	nodetest.BerthOnly(t, "Debian's version is older than these plugins")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := nodetest.Start(t, node.Options{Tables: patientLaunch, Prepare: func(n *node.Node) error {
		conf := filepath.Join(n.Dir, "nri.d")
		err := errors.Join(os.MkdirAll(n.NRIPlugins, 0o700), os.MkdirAll(conf, 0o700),
			os.WriteFile(filepath.Join(conf, "10-launched.conf"), []byte("settings\n"), 0o600))
		return errors.Join(err, os.Symlink(self, filepath.Join(n.NRIPlugins, "10-launched")))
	}})
	pod := nodetest.RunPod(t, n)
	const ask = "echo $LAUNCHED $LAUNCHED_AS"
	if got := pod.Output(ask); got != "berth settings 10-launched\n" {
		t.Errorf("the plugin set %q", got)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if got := pod.Output(ask); got != "berth settings 10-launched\n" {
		t.Errorf("after a restart the plugin set %q", got)
	}
}

// TestAProgramThatIsNoPluginHurtsNobody: pods run, and the plugins start once the program has gone. A program with
// another name was seen to keep berthd from starting.
func TestAProgramThatIsNoPluginHurtsNobody(t *testing.T) {
	nodetest.BerthOnly(t, "Debian's version is older than these plugins")
	for name, program := range map[string]struct{ name, content string }{
		"with another name": {"plugin", "#!/bin/sh\n"},
		"that ends":         {"10-ends", "#!/bin/sh\n"},
		"of WebAssembly":    {"10-wasm", "\x00asm\x01\x00\x00\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			var bad string
			n := nodetest.Start(t, node.Options{Prepare: func(n *node.Node) error {
				bad = filepath.Join(n.NRIPlugins, program.name)
				return errors.Join(os.MkdirAll(n.NRIPlugins, 0o700), os.WriteFile(bad, []byte(program.content), 0o700))
			}})
			pod := nodetest.RunPod(t, n)
			if got := pod.Output("echo lives"); got != "lives\n" {
				t.Errorf("the container said %q", got)
			}
			if err := os.Remove(bad); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Dir(n.NRISocket), 0o700); err != nil {
				t.Fatal(err)
			}
			nodetest.Eventually(t, node.Patience(20*time.Second), "berthd listens for plugins", func() error {
				_, err := os.Stat(n.NRISocket)
				return err
			})
		})
	}
}

func TestTheInterfaceStartsWhenThereIsAPlaceForPlugins(t *testing.T) {
	nodetest.BerthOnly(t, "Debian's version is older than these plugins")
	n := nodetest.Start(t, node.Options{})
	pod := nodetest.RunPod(t, n)
	pod.Run()
	if _, err := os.Stat(n.NRISocket); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("there is a socket, and nobody has a plugin: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(n.NRISocket), 0o700); err != nil {
		t.Fatal(err)
	}
	connectOnceServed(t, n, "10-env", &plugin{create: setEnv("FROM", "plugin")})
	if got := pod.Run().Sh("echo $FROM"); got != "plugin" {
		t.Errorf("the plugin set %q", got)
	}
	if info, err := os.Stat(n.NRISocket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
}

func TestTheSocketOfAnotherRuntimeIsLeftToIt(t *testing.T) {
	nodetest.BerthOnly(t, "Debian's version is older than these plugins")
	var other net.Listener
	n := nodetest.Start(t, node.Options{Prepare: func(n *node.Node) (err error) {
		if err := os.MkdirAll(filepath.Dir(n.NRISocket), 0o700); err != nil {
			return err
		}
		other, err = net.Listen("unix", n.NRISocket)
		return err
	}})
	pod := nodetest.RunPod(t, n)
	pod.Run()
	conn, err := net.Dial("unix", n.NRISocket)
	if err != nil {
		t.Fatalf("the other runtime's socket is gone: %v", err)
	}
	conn.Close()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	connectOnceServed(t, n, "10-env", &plugin{create: setEnv("FROM", "plugin")})
	if got := pod.Run().Sh("echo $FROM"); got != "plugin" {
		t.Errorf("the plugin set %q", got)
	}
}
