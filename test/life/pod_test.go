package life

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	kubeversion "k8s.io/apimachinery/pkg/util/version"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	early "berth/api/runtime/v1alpha1"
	"berth/internal/cri/containerd"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestAKubeletCanBeToldTheNameOfContainerd: see docs/kubernetes.md. A kubelet has to take the version.
func TestAKubeletCanBeToldTheNameOfContainerd(t *testing.T) {
	nodetest.BerthOnly(t, "the key is Berth's")
	n := nodetest.Start(t, node.Options{Config: "runtime_name = \"containerd\"\n"})
	v, err := n.Runtime.Version(nodetest.Context(t), &cri.VersionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	older, err := nodetest.DialV1alpha2(n).Version(nodetest.Context(t), &cri.VersionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	oldest, err := early.NewRuntimeServiceClient(n.Conn).Version(nodetest.Context(t), &early.VersionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, told := range [][2]string{{v.RuntimeName, v.RuntimeVersion}, {older.RuntimeName, older.RuntimeVersion},
		{oldest.GetRuntimeName(), oldest.GetRuntimeVersion()}} {
		if _, err := kubeversion.ParseSemantic(told[1]); err != nil || told[0] != "containerd" ||
			!strings.HasPrefix(told[1], containerd.Version("")) {
			t.Errorf("%s://%s, %v", told[0], told[1], err)
		}
	}
}

func TestVersionAndStatusSayWhatANodeIs(t *testing.T) {
	n := nodetest.Shared(t)
	version, err := n.Runtime.Version(nodetest.Context(t), &cri.VersionRequest{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	if version.RuntimeApiVersion != "v1" || version.RuntimeName == "" {
		t.Errorf("version: %v", version)
	}
	// A kubelet shows Unknown where its parser takes nothing. Seen to fail with the short commit that Git calls a tree
	// without tags.
	if _, err := kubeversion.ParseSemantic(version.RuntimeVersion); err != nil {
		t.Errorf("the runtime's version is not semantic: %v", err)
	}
	status, err := n.Runtime.Status(nodetest.Context(t), &cri.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, c := range status.Status.Conditions {
		got[c.Type] = c.Status
	}
	if !got["RuntimeReady"] || !got["NetworkReady"] {
		t.Errorf("conditions: %v", status.Status.Conditions)
	}
	nodetest.BerthOnly(t, "RuntimeConfig is newer")
	config, err := n.Runtime.RuntimeConfig(nodetest.Context(t), &cri.RuntimeConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if config.Linux == nil {
		t.Errorf("runtime config: %v", config)
	}
}

func TestStopAndRemoveAreIdempotent(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	for range 3 {
		c.Stop(0)
	}
	for range 3 {
		c.Remove()
	}
	for range 3 {
		p.Stop()
	}
	if s := p.Status(); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("a stopped pod is %v", s.State)
	}
	for range 3 {
		p.Remove()
	}
	if !nodetest.Containerd() {
		p.Stop() // of a pod that is gone
	}
}

func TestWhatIsGoneIsNotFound(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	p.Remove()
	ctx := nodetest.Context(t)
	_, err := n.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.ID})
	nodetest.WantCode(t, err, codes.NotFound)
	_, err = n.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.ID})
	nodetest.WantCode(t, err, codes.NotFound)
	_, err = n.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID})
	nodetest.WantCode(t, err, codes.NotFound)
	_, err = n.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"true"}})
	nodetest.WantCode(t, err, codes.NotFound)
	_, err = n.Runtime.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: c.ID})
	nodetest.WantCode(t, err, codes.NotFound)
}

func TestAPodThatIsRemovedTakesItsContainersAlong(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	p.Run()
	dir := t.TempDir()
	c := p.Run(nodetest.Sh("trap 'touch /told/TERM' TERM; echo ready; while :; do sleep 0.1; done"),
		nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: "/told"}))
	c.WaitLog("ready")
	p.Create()
	p.Run(nodetest.Sh("exit 0")).WaitExit()
	p.Remove()
	if exists(filepath.Join(dir, "TERM")) {
		t.Error("a container was sent TERM: a removal is forcible")
	}
	list, err := n.Runtime.ListContainers(nodetest.Context(t), &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{PodSandboxId: p.ID},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Containers) != 0 {
		t.Errorf("left: %v", list.Containers)
	}
}

func TestAStoppedPodKeepsItsContainersAsExited(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	p.Stop()
	if s := c.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.FinishedAt == 0 {
		t.Errorf("the container is %v, finished at %d", s.State, s.FinishedAt)
	}
	_, err := p.TryCreate()
	if err == nil {
		t.Error("a container can be made in a stopped pod")
	}
}

func TestANameIsUniqueByNameNamespaceUIDAndAttempt(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	same := nodetest.PodConfig(n, func(c *cri.PodSandboxConfig) { c.Metadata = p.Config.Metadata })
	response, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{Config: same})
	if err == nil {
		t.Errorf("a second pod of the same name runs: %s", response.PodSandboxId)
	} else if !nodetest.Containerd() {
		nodetest.WantCode(t, err, codes.AlreadyExists)
	}
	for _, change := range []func(*cri.PodSandboxMetadata){
		func(m *cri.PodSandboxMetadata) { m.Attempt++ },
		func(m *cri.PodSandboxMetadata) { m.Namespace += "2" },
		func(m *cri.PodSandboxMetadata) { m.Uid += "2" },
		func(m *cri.PodSandboxMetadata) { m.Name += "_2" },
	} {
		nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
			m := p.Config.Metadata
			c.Metadata = &cri.PodSandboxMetadata{Name: m.Name, Namespace: m.Namespace, Uid: m.Uid, Attempt: m.Attempt}
			change(c.Metadata)
		})
	}
	p.Remove()
	again := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Metadata = p.Config.Metadata })

	first := again.Create(func(c *cri.ContainerConfig) { c.Metadata = &cri.ContainerMetadata{Name: "one"} })
	if _, err := again.TryCreate(func(c *cri.ContainerConfig) { c.Metadata = first.Config.Metadata }); err == nil {
		t.Error("a second container of the same name is made")
	}
	again.Create(func(c *cri.ContainerConfig) { c.Metadata = &cri.ContainerMetadata{Name: "one", Attempt: 1} })
}

func TestIDPrefixesAreAccepted(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	ctx := nodetest.Context(t)
	if s, err := n.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.ID[:13]}); err != nil ||
		s.Status.Id != p.ID {
		t.Errorf("pod status: %v, %v", s, err)
	}
	if s, err := n.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.ID[:13]}); err != nil ||
		s.Status.Id != c.ID {
		t.Errorf("container status: %v, %v", s, err)
	}
	if e, err := n.Runtime.ExecSync(ctx,
		&cri.ExecSyncRequest{ContainerId: c.ID[:13], Cmd: []string{"echo", "x"}}); err != nil || string(e.Stdout) != "x\n" {
		t.Errorf("exec: %v, %v", e, err)
	}
	if l, err := n.Runtime.ListContainers(ctx,
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: c.ID[:13]}}); err != nil || len(l.Containers) != 1 {
		t.Errorf("list: %v, %v", l, err)
	}
	if l, err := n.Runtime.ListPodSandbox(ctx,
		&cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: p.ID[:13]}}); err != nil || len(l.Items) != 1 {
		t.Errorf("list: %v, %v", l, err)
	}
	if _, err := n.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.ID[:13]}); err != nil {
		t.Error(err)
	}
	if _, err := n.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.ID[:13]}); err != nil {
		t.Error(err)
	}
	if _, err := n.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.ID[:13]}); err != nil {
		t.Error(err)
	}
}

func TestListsAreFilteredByStateLabelsAndID(t *testing.T) {
	n := nodetest.Shared(t)
	label := func(key, value string) nodetest.PodEdit {
		return func(c *cri.PodSandboxConfig) { c.Labels = map[string]string{"suite": "filters", key: value} }
	}
	ready := nodetest.RunPod(t, n, label("which", "ready"))
	stopped := nodetest.RunPod(t, n, label("which", "stopped"))
	stopped.Stop()
	pods := func(f *cri.PodSandboxFilter) []string {
		t.Helper()
		if f.LabelSelector == nil {
			f.LabelSelector = map[string]string{"suite": "filters"}
		}
		list, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{Filter: f})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, item := range list.Items {
			ids = append(ids, item.Id)
		}
		slices.Sort(ids)
		return ids
	}
	sorted := func(ids ...string) []string { slices.Sort(ids); return ids }
	isReady := &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}
	notReady := &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_NOTREADY}
	for _, test := range []struct {
		claim  string
		filter *cri.PodSandboxFilter
		want   []string
	}{
		{"by one label", &cri.PodSandboxFilter{}, sorted(ready.ID, stopped.ID)},
		{"by two labels", &cri.PodSandboxFilter{LabelSelector: map[string]string{"suite": "filters", "which": "ready"}},
			sorted(ready.ID)},
		{"by a label with another value", &cri.PodSandboxFilter{LabelSelector: map[string]string{"suite": "other"}}, nil},
		{"ready", &cri.PodSandboxFilter{State: isReady}, sorted(ready.ID)},
		{"not ready", &cri.PodSandboxFilter{State: notReady}, sorted(stopped.ID)},
		{"by ID", &cri.PodSandboxFilter{Id: ready.ID}, sorted(ready.ID)},
		{"by ID and a state that it is not in", &cri.PodSandboxFilter{Id: ready.ID, State: notReady}, nil},
		{"by an unknown ID", &cri.PodSandboxFilter{Id: "ffffffff"}, nil},
	} {
		if got := pods(test.filter); !slices.Equal(got, test.want) {
			t.Errorf("pods %s: got %v, want %v", test.claim, got, test.want)
		}
	}

	running := ready.Run(func(c *cri.ContainerConfig) { c.Labels = map[string]string{"which": "running"} })
	created := ready.Create()
	exited := ready.Run(nodetest.Sh("exit 0"))
	exited.WaitExit()
	for _, test := range []struct {
		claim  string
		filter *cri.ContainerFilter
		want   []string
	}{
		{"of a pod", &cri.ContainerFilter{}, sorted(running.ID, created.ID, exited.ID)},
		{"running", &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}},
			sorted(running.ID)},
		{"created", &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_CREATED}},
			sorted(created.ID)},
		{"exited", &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_EXITED}},
			sorted(exited.ID)},
		{"by label", &cri.ContainerFilter{LabelSelector: map[string]string{"which": "running"}}, sorted(running.ID)},
		{"by ID", &cri.ContainerFilter{Id: exited.ID}, sorted(exited.ID)},
		{"by an unknown ID", &cri.ContainerFilter{Id: "ffffffff"}, nil},
	} {
		test.filter.PodSandboxId = ready.ID
		list, err := n.Runtime.ListContainers(nodetest.Context(t), &cri.ListContainersRequest{Filter: test.filter})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, item := range list.Containers {
			got = append(got, item.Id)
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("containers %s: got %v, want %v", test.claim, got, test.want)
		}
	}
}

func TestAnnotationsAndLabelsComeBackAsGiven(t *testing.T) {
	n := nodetest.Shared(t)
	given := map[string]string{
		"plain": "value", "empty": "", "with space and ünïcode": "line one\nline two\t\"quoted\"",
		"io.kubernetes.container.hash": "deadbeef",
	}
	labels := map[string]string{"a/b": "c", "under_score": "d_e"}
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Annotations, c.Labels = given, labels })
	c := p.Create(func(c *cri.ContainerConfig) { c.Annotations, c.Labels = given, labels })
	same := func(where string, annotations, gotLabels map[string]string) {
		t.Helper()
		if fmt.Sprint(annotations) != fmt.Sprint(given) {
			t.Errorf("%s: annotations %q, want %q", where, annotations, given)
		}
		if fmt.Sprint(gotLabels) != fmt.Sprint(labels) {
			t.Errorf("%s: labels %q, want %q", where, gotLabels, labels)
		}
	}
	status := p.Status()
	same("pod status", status.Annotations, status.Labels)
	containerStatus := c.Status()
	same("container status", containerStatus.Annotations, containerStatus.Labels)
	pods, err := n.Runtime.ListPodSandbox(nodetest.Context(t),
		&cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: p.ID}})
	if err != nil || len(pods.Items) != 1 {
		t.Fatal(pods, err)
	}
	same("pod list", pods.Items[0].Annotations, pods.Items[0].Labels)
	containers, err := n.Runtime.ListContainers(nodetest.Context(t),
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: c.ID}})
	if err != nil || len(containers.Containers) != 1 {
		t.Fatal(containers, err)
	}
	same("container list", containers.Containers[0].Annotations, containers.Containers[0].Labels)
}

func TestTimesAreNanosecondsInOrder(t *testing.T) {
	n := nodetest.Shared(t)
	before := time.Now().UnixNano()
	p := nodetest.RunPod(t, n)
	c := p.Create(nodetest.Sh("sleep 0.2"))
	created := c.Status()
	if created.StartedAt != 0 || created.FinishedAt != 0 {
		t.Errorf("a created container started at %d and finished at %d", created.StartedAt, created.FinishedAt)
	}
	c.Start()
	done := c.WaitExit()
	after := time.Now().UnixNano()
	times := []int64{before, p.Status().CreatedAt, done.CreatedAt, done.StartedAt, done.FinishedAt, after}
	if !slices.IsSorted(times) {
		t.Errorf("before, pod, created, started, finished, after: %v", times)
	}
	if lived := time.Duration(done.FinishedAt - done.StartedAt); lived < 150*time.Millisecond || lived > time.Minute {
		t.Errorf("a container that sleeps 0.2 s lived %v", lived)
	}
}

func TestAStatusSaysWhatTheContainerWasMadeOf(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Mounts(&cri.Mount{HostPath: t.TempDir(), ContainerPath: "/m", Readonly: true}))
	s := c.Status()
	if s.Image.GetImage() != node.Busybox || s.ImageRef == "" || s.LogPath != c.LogPath() ||
		s.Metadata.Name != c.Config.Metadata.Name {
		t.Errorf("status: %v", s)
	}
	if len(s.Mounts) != 1 || s.Mounts[0].ContainerPath != "/m" || !s.Mounts[0].Readonly {
		t.Errorf("mounts: %v", s.Mounts)
	}
	verbose, err := n.Runtime.ContainerStatus(nodetest.Context(t),
		&cri.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(verbose.Info) == 0 {
		t.Error("verbose says nothing")
	}
	pod, err := n.Runtime.PodSandboxStatus(nodetest.Context(t),
		&cri.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(pod.Info) == 0 {
		t.Error("verbose says nothing")
	}
}

func TestTenPodsStartAtOnce(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.Pull(t, n, node.Busybox)
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
	defer cancel()
	errs := make(chan error)
	const pods = 10
	for i := range pods {
		config := nodetest.PodConfig(n)
		go func() {
			errs <- func() error {
				pod, err := n.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
				if err != nil {
					return fmt.Errorf("pod %d: %w", i, err)
				}
				container, err := n.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
					PodSandboxId: pod.PodSandboxId, SandboxConfig: config,
					Config: &cri.ContainerConfig{
						Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: node.Busybox},
						Command: []string{"sleep", "3600"}, LogPath: "c.log", Linux: &cri.LinuxContainerConfig{},
					},
				})
				if err != nil {
					return fmt.Errorf("create %d: %w", i, err)
				}
				if _, err := n.Runtime.StartContainer(ctx,
					&cri.StartContainerRequest{ContainerId: container.ContainerId}); err != nil {
					return fmt.Errorf("start %d: %w", i, err)
				}
				_, err = n.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.PodSandboxId})
				return err
			}()
		}()
	}
	for range pods {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
