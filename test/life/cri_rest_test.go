package life

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// items are all items of a stream that has ended well.
func items[M any, I any](t testing.TB, s grpc.ServerStreamingClient[M], err error, of func(*M) []I) (all []I) {
	t.Helper()
	for err == nil {
		var m *M
		if m, err = s.Recv(); err == nil {
			all = append(all, of(m)...)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return all
}

func TestStreamsSayWhatListsSay(t *testing.T) {
	nodetest.BerthOnly(t, "streaming lists are newer")
	n := nodetest.Shared(t)
	labels := map[string]string{"suite": "streams"}
	var pods, containers []string
	for range 3 {
		p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Labels = labels })
		pods = append(pods, p.ID)
		containers = append(containers, p.Run(func(c *cri.ContainerConfig) { c.Labels = labels }).ID)
	}
	slices.Sort(pods)
	slices.Sort(containers)
	ctx := nodetest.Context(t)
	check := func(what string, got, want []string) {
		t.Helper()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	{
		s, err := n.Runtime.StreamPodSandboxes(ctx,
			&cri.StreamPodSandboxesRequest{Filter: &cri.PodSandboxFilter{LabelSelector: labels}})
		check("pods", names(items(t, s, err, (*cri.StreamPodSandboxesResponse).GetPodSandboxes),
			(*cri.PodSandbox).GetId), pods)
	}
	{
		s, err := n.Runtime.StreamContainers(ctx,
			&cri.StreamContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: labels}})
		check("containers", names(items(t, s, err, (*cri.StreamContainersResponse).GetContainers), (*cri.Container).GetId),
			containers)
	}
	{
		s, err := n.Runtime.StreamContainerStats(ctx,
			&cri.StreamContainerStatsRequest{Filter: &cri.ContainerStatsFilter{LabelSelector: labels}})
		check("container stats", names(items(t, s, err, (*cri.StreamContainerStatsResponse).GetContainerStats),
			func(u *cri.ContainerStats) string { return u.GetAttributes().GetId() }), containers)
	}
	{
		s, err := n.Runtime.StreamPodSandboxStats(ctx,
			&cri.StreamPodSandboxStatsRequest{Filter: &cri.PodSandboxStatsFilter{LabelSelector: labels}})
		check("pod stats", names(items(t, s, err, (*cri.StreamPodSandboxStatsResponse).GetPodSandboxStats),
			func(u *cri.PodSandboxStats) string { return u.GetAttributes().GetId() }), pods)
	}
	{
		list, err := n.Images.ListImages(ctx, &cri.ListImagesRequest{})
		if err != nil || len(list.Images) == 0 {
			t.Fatalf("%v, %v", list, err)
		}
		want := names(list.Images, (*cri.Image).GetId)
		slices.Sort(want)
		s, err := n.Images.StreamImages(ctx, &cri.StreamImagesRequest{})
		check("images", names(items(t, s, err, (*cri.StreamImagesResponse).GetImages), (*cri.Image).GetId), want)
	}
	{
		s, err := n.Runtime.StreamPodSandboxMetrics(ctx, &cri.StreamPodSandboxMetricsRequest{})
		got := names(items(t, s, err, (*cri.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics),
			(*cri.PodSandboxMetrics).GetPodSandboxId)
		for _, id := range pods {
			if !slices.Contains(got, id) {
				t.Errorf("metrics of %s are missing", id)
			}
		}
	}
}

func names[I any](list []I, name func(I) string) (out []string) {
	for _, item := range list {
		out = append(out, name(item))
	}
	return out
}

func TestMetricsAreThoseOfCAdvisor(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "metrics over the CRI are newer")
	n := nodetest.Shared(t)
	ctx := nodetest.Context(t)
	keys := map[string][]string{}
	descriptors, err := n.Runtime.ListMetricDescriptors(ctx, &cri.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descriptors.Descriptors {
		keys[d.Name] = d.LabelKeys
	}
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh("head -c 2000000 /dev/zero >/file; while :; do :; done"), func(c *cri.ContainerConfig) {
		// So little that it is throttled though the machine is busy.
		c.Linux.Resources = &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 5000, MemoryLimitInBytes: 64 << 20}
	})
	peer := nodetest.RunPod(t, n).Run()
	peer.Sh("ping -c 2 " + p.IP() + " >/dev/null || true")

	type value struct {
		labels map[string]string
		number uint64
		kind   cri.MetricType
	}
	read := func() (pod, container map[string][]value) {
		t.Helper()
		r, err := n.Runtime.ListPodSandboxMetrics(ctx, &cri.ListPodSandboxMetricsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		take := func(list []*cri.Metric) map[string][]value {
			out := map[string][]value{}
			for _, m := range list {
				if len(m.LabelValues) != len(keys[m.Name]) || m.Value == nil {
					t.Fatalf("%v does not fit its descriptor %v", m, keys[m.Name])
				}
				labels := map[string]string{}
				for i, key := range keys[m.Name] {
					labels[key] = m.LabelValues[i]
				}
				out[m.Name] = append(out[m.Name], value{labels, m.Value.Value, m.MetricType})
			}
			return out
		}
		for _, m := range r.PodMetrics {
			if m.PodSandboxId != p.ID {
				continue
			}
			for _, cm := range m.ContainerMetrics {
				if cm.ContainerId == c.ID {
					return take(m.Metrics), take(cm.Metrics)
				}
			}
		}
		t.Fatal("the pod is missing")
		return nil, nil
	}
	var pod, container map[string][]value
	nodetest.Eventually(t, 2*time.Minute, "CPU time, throttling, disk usage and traffic are counted", func() error {
		pod, container = read()
		for name, least := range map[string]uint64{"container_cpu_usage_seconds_total": 1,
			"container_cpu_cfs_throttled_periods_total": 1,
			"container_fs_usage_bytes":                  2000000} {
			if len(container[name]) == 0 || container[name][0].number < least {
				return fmt.Errorf("%s is %v", name, container[name])
			}
		}
		if v := pod["container_network_receive_bytes_total"]; len(v) == 0 || v[0].number == 0 ||
			v[0].labels["interface"] != "eth0" {
			return fmt.Errorf("traffic is %v", v)
		}
		return nil
	})
	for _, name := range []string{"container_cpu_user_seconds_total", "container_cpu_system_seconds_total",
		"container_memory_working_set_bytes", "container_memory_usage_bytes", "container_memory_rss",
		"container_memory_cache",
		"container_memory_failcnt", "container_memory_failures_total", "container_oom_events_total", "container_processes",
		"container_threads", "container_file_descriptors", "container_sockets", "container_ulimits_soft",
		"container_fs_limit_bytes", "container_fs_inodes_total", "container_spec_memory_limit_bytes",
		"container_spec_memory_swap_limit_bytes", "container_start_time_seconds"} {
		if len(container[name]) == 0 {
			t.Errorf("%s of the container is missing", name)
		}
	}
	for _, name := range []string{"container_cpu_usage_seconds_total",
		"container_memory_working_set_bytes", "container_processes", "container_spec_memory_swap_limit_bytes",
		"container_network_transmit_packets_total", "container_network_receive_packets_dropped_total",
		"container_network_transmit_errors_total"} {
		if len(pod[name]) == 0 {
			t.Errorf("%s of the pod is missing", name)
		}
	}
	cpu := container["container_cpu_usage_seconds_total"][0]
	want := map[string]string{"container": c.Config.Metadata.Name, "pod": p.Config.Metadata.Name, "namespace": "test",
		"name": c.ID, "image": node.Busybox, "cpu": "total"}
	for key, text := range want {
		if cpu.labels[key] != text {
			t.Errorf("label %s is %q, want %q", key, cpu.labels[key], text)
		}
	}
	if !strings.Contains(cpu.labels["id"], c.ID) || cpu.kind != cri.MetricType_COUNTER {
		t.Errorf("%+v", cpu)
	}
	if got := container["container_spec_memory_limit_bytes"][0]; got.number != 64<<20 || got.kind != cri.MetricType_GAUGE {
		t.Errorf("%+v", got)
	}
}

// podCgroupFile reads a file of a pod's cgroup, by its name in v1 (controller/file) or in v2.
func podCgroupFile(t testing.TB, parent, v1, v2 string) string {
	t.Helper()
	for _, path := range []string{filepath.Join("/sys/fs/cgroup", filepath.Dir(v1), parent, filepath.Base(v1)),
		filepath.Join("/sys/fs/cgroup", parent, v2)} {
		if data, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	t.Fatalf("cgroup %s has neither %s nor %s", parent, v1, v2)
	return ""
}

func TestLimitsOfAPodAreOnItsCgroupWithTheOverhead(t *testing.T) {
	nodetest.BerthOnly(t, "pod level limits are newer")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512,
			MemoryLimitInBytes: 64 << 20}
		c.Linux.Overhead = &cri.LinuxContainerResources{CpuPeriod: 50000, CpuQuota: 5000, CpuShares: 102,
			MemoryLimitInBytes: 16 << 20}
	})
	parent := p.Config.Linux.CgroupParent
	check := func(v1, v2, wantV1, wantV2 string) {
		t.Helper()
		if got := podCgroupFile(t, parent, v1, v2); got != wantV1 && got != wantV2 {
			t.Errorf("%s or %s is %q, want %q or %q", v1, v2, got, wantV1, wantV2)
		}
	}
	check("memory/memory.limit_in_bytes", "memory.max", "83886080", "83886080")
	check("cpu/cpu.cfs_quota_us", "cpu.max", "60000", "60000 100000")
	check("cpu/cpu.shares", "cpu.weight", "614", "67")

	// A container that wants more than its pod may have is ended by the pod's limit.
	c := p.Run(nodetest.Sh("head -c 120000000 /dev/zero | tail >/dev/null"))
	if s := c.WaitExit(); s.ExitCode == 0 {
		t.Errorf("it had 120 MB in a pod of 80 MiB: %v", s)
	}
	_, err := n.Runtime.UpdatePodSandboxResources(nodetest.Context(t), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: p.ID, Resources: &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 70000,
			MemoryLimitInBytes: 128 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	check("memory/memory.limit_in_bytes", "memory.max", "150994944", "150994944")
	check("cpu/cpu.cfs_quota_us", "cpu.max", "80000", "80000 100000")
	check("cpu/cpu.shares", "cpu.weight", "614", "67") // what is not named stays
	_, err = n.Runtime.UpdatePodSandboxResources(nodetest.Context(t), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: p.ID, Overhead: &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	check("memory/memory.limit_in_bytes", "memory.max", "167772160", "167772160")
}

// TestAnUpdateOfAPodThatIsRefusedInPartChangesNoLimit: the kernel takes a limit of memory before it refuses to give the
// pod less of the processors than a container of it has. Seen to fail when only limits that there were before were set
// again.
func TestAnUpdateOfAPodThatIsRefusedInPartChangesNoLimit(t *testing.T) {
	nodetest.BerthOnly(t, "pod level limits are newer")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	p.Run(func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 90000}
	})
	limits := func() string {
		parent := p.Config.Linux.CgroupParent
		return podCgroupFile(t, parent, "memory/memory.limit_in_bytes", "memory.max") + ", " +
			podCgroupFile(t, parent, "cpu/cpu.cfs_quota_us", "cpu.max")
	}
	before := limits()
	_, err := n.Runtime.UpdatePodSandboxResources(nodetest.Context(t), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: p.ID, Resources: &cri.LinuxContainerResources{
			MemoryLimitInBytes: 256 << 20, CpuPeriod: 100000, CpuQuota: 20000,
		},
	})
	if err == nil {
		t.Skip("this kernel gives a pod less of the processors than its container has")
	}
	if after := limits(); after != before {
		t.Errorf("after %v the limits are %s, and were %s", err, after, before)
	}
}

func TestLimitsOfACgroupThatTheClientMadeAreTheClients(t *testing.T) {
	nodetest.BerthOnly(t, "pod level limits are newer")
	n := nodetest.Shared(t)
	roots, err := node.CgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	parent := n.PodCgroup("kept")
	for _, root := range roots {
		if err := os.MkdirAll(filepath.Join(root, parent), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.CgroupParent = parent
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
	})
	limit := func() string { return podCgroupFile(t, parent, "memory/memory.limit_in_bytes", "memory.max") }
	if got := limit(); got == "67108864" {
		t.Error("the runtime has set a limit that is the client's")
	}
	if _, err := n.Runtime.UpdatePodSandboxResources(nodetest.Context(t), &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: p.ID, Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: 96 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	if got := limit(); got == "100663296" {
		t.Error("an update has set a limit that is the client's")
	}
	r, err := n.Runtime.PodSandboxStatus(nodetest.Context(t),
		&cri.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
	if err != nil || !strings.Contains(r.Info["info"], "100663296") {
		t.Errorf("the new limit is not remembered: %v, %v", r.GetInfo(), err)
	}
	p.Remove()
	if n.Systemd { // to which a directory with scopes in it is a slice
		if out, err := exec.Command("systemctl", "stop", filepath.Base(parent)).CombinedOutput(); err != nil {
			t.Errorf("systemctl stop: %v: %s", err, out)
		}
	}
	for _, root := range roots {
		if err := os.Remove(filepath.Join(root, parent)); err != nil && !(n.Systemd && errors.Is(err, os.ErrNotExist)) {
			t.Error(err)
		}
	}
}

func TestAnUpdateOfAPodThatCannotBeIsRefused(t *testing.T) {
	nodetest.BerthOnly(t, "pod level limits are newer")
	n := nodetest.Shared(t)
	update := func(id string, r *cri.LinuxContainerResources) error {
		_, err := n.Runtime.UpdatePodSandboxResources(nodetest.Context(t),
			&cri.UpdatePodSandboxResourcesRequest{PodSandboxId: id, Resources: r})
		return err
	}
	nodetest.WantCode(t, update(strings.Repeat("f", 64), &cri.LinuxContainerResources{CpuShares: 2}), codes.NotFound)
	p := nodetest.RunPod(t, n)
	nodetest.WantCode(t, update(p.ID, &cri.LinuxContainerResources{CpuPeriod: 5}), codes.InvalidArgument)
	p.Stop()
	nodetest.WantCode(t, update(p.ID, &cri.LinuxContainerResources{CpuShares: 2}), codes.FailedPrecondition)
}

func TestEventsAreThereFromTheHeaderOnOnceEachInOrder(t *testing.T) {
	nodetest.BerthOnly(t, "GetContainerEvents is newer")
	n := nodetest.Shared(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream, err := n.Runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	const pods = 5
	ended := make(chan *nodetest.Pod, pods)
	for range pods {
		go func() {
			p := nodetest.RunPod(t, n)
			c := p.Run(nodetest.Sh("exit 0"))
			c.WaitExit()
			p.Stop()
			p.Remove()
			ended <- p
		}()
	}
	ours := map[string]*nodetest.Pod{}
	for range pods {
		p := <-ended
		ours[p.Config.Metadata.Uid] = p
	}
	got := map[string][]string{}
	var last int64
	for left := pods; left > 0; {
		e, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		if e.CreatedAt < last {
			t.Errorf("an event of %d comes after one of %d", e.CreatedAt, last)
		}
		last = e.CreatedAt
		uid := e.PodSandboxStatus.GetMetadata().GetUid()
		if ours[uid] == nil {
			continue
		}
		who := "container"
		if e.ContainerId == e.PodSandboxStatus.Id {
			who = "pod"
		}
		kind := strings.TrimSuffix(strings.TrimPrefix(e.ContainerEventType.String(), "CONTAINER_"), "_EVENT")
		got[uid] = append(got[uid], who+" "+kind)
		if who == "pod" && kind == "DELETED" {
			left--
		}
	}
	want := "pod CREATED, pod STARTED, container CREATED, container STARTED, container STOPPED, pod STOPPED, " +
		"container DELETED, pod DELETED"
	for uid := range ours {
		if all := strings.Join(got[uid], ", "); all != want {
			t.Errorf("%s: got %s, want %s", uid, all, want)
		}
	}
}

// TestTheInfoSaysWhetherAContainerIsPrivileged where Falco looks for it.
func TestTheInfoSaysWhetherAContainerIsPrivileged(t *testing.T) {
	nodetest.BerthOnly(t, "containerd has it elsewhere")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, podSecurity(func(s *cri.LinuxSandboxSecurityContext) { s.Privileged = true }))
	for _, want := range []bool{true, false} {
		c := p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = want }),
			func(c *cri.ContainerConfig) { c.Metadata.Name = fmt.Sprint(want) })
		st, err := n.Runtime.ContainerStatus(nodetest.Context(t),
			&cri.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		var info struct {
			Privileged *bool `json:"privileged"`
		}
		if err := json.Unmarshal([]byte(st.Info["info"]), &info); err != nil || info.Privileged == nil ||
			*info.Privileged != want {
			t.Errorf("privileged, where it is %t: %v, %v", want, info.Privileged, err)
		}
	}
}

// TestAPodsStatusHasWhatRecipesLookFor: those for containerd and CRI-O take a network namespace from the specification
// of the pod's sandbox, or from its process, and Berth has neither.
func TestAPodsStatusHasWhatRecipesLookFor(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}),
		func(c *cri.PodSandboxConfig) {
			// Agents take these for the runtime's word.
			c.Annotations = map[string]string{"io.kubernetes.cri.sandbox-id": "forged",
				"io.kubernetes.cri-o.CgroupParent": "/forged", "io.kubernetes.cri-o.CNIResult": "{}"}
		})
	type info struct {
		PID    int                   `json:"pid"`
		Spec   specs.Spec            `json:"runtimeSpec"`
		Config *cri.PodSandboxConfig `json:"config"`
		CNI    struct {
			Interfaces map[string]struct {
				IPConfigs []struct{ IP, Gateway string }
			}
		} `json:"cniResult"`
	}
	of := func() (i info) {
		t.Helper()
		st, err := n.Runtime.PodSandboxStatus(nodetest.Context(t),
			&cri.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(st.Info["info"]), &i); err != nil {
			t.Fatal(err)
		}
		return i
	}
	if !nodetest.Containerd() && of().PID != 0 {
		t.Errorf("a pod without a process has PID %d", of().PID)
	}
	c := p.Run()
	got := of()
	pid, err := n.ContainerPID(c.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := namespace(t, pid, "net")
	if namespace(t, got.PID, "net") != want {
		t.Errorf("process %d is in another network namespace", got.PID)
	}
	if a := got.Spec.Annotations; a["io.kubernetes.cri.sandbox-id"] != p.ID ||
		a["io.kubernetes.cri.container-type"] != "sandbox" || a["io.kubernetes.cri-o.CgroupParent"] != "" ||
		a["io.kubernetes.cri-o.CNIResult"] != "" {
		t.Errorf("annotations of the specification: %v", a)
	}
	if got.Config.GetLinux().GetCgroupParent() != p.Config.Linux.CgroupParent ||
		got.Config.GetMetadata().GetUid() != p.Config.Metadata.Uid {
		t.Errorf("the pod was made of %v, and its status says %v", p.Config, got.Config)
	}
	if ips := got.CNI.Interfaces["eth0"].IPConfigs; len(ips) == 0 || ips[0].IP != p.IP() {
		t.Errorf("addresses of the pod, which has %s: %+v", p.IP(), got.CNI)
	}
	i := slices.IndexFunc(got.Spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.NetworkNamespace
	})
	if i < 0 {
		t.Fatalf("namespaces of the specification: %+v", got.Spec.Linux.Namespaces)
	}
	var st unix.Stat_t
	if err := unix.Stat(got.Spec.Linux.Namespaces[i].Path, &st); err != nil || fmt.Sprintf("net:[%d]", st.Ino) != want {
		t.Errorf("%s is net:[%d], %v, want %s", got.Spec.Linux.Namespaces[i].Path, st.Ino, err, want)
	}
}

// TestTheInfoHasTheConfigurationOfTheCRI: agents for containerd decode it into the CRI's message. Seen to fail where it
// was Berth's own, in which the propagation of a mount is a word.
func TestTheInfoHasTheConfigurationOfTheCRI(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	dir := t.TempDir()
	c := p.Run(nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: "/data"}), func(c *cri.ContainerConfig) {
		c.Envs = []*cri.KeyValue{{Key: "A", Value: []byte("b=c")}}
	})
	st, err := n.Runtime.ContainerStatus(nodetest.Context(t),
		&cri.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		SandboxID string               `json:"sandboxID"`
		PID       uint32               `json:"pid"`
		Config    *cri.ContainerConfig `json:"config"`
		Spec      *specs.Spec          `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(st.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	if envs := info.Config.GetEnvs(); len(envs) != 1 || envs[0].Key != "A" || string(envs[0].Value) != "b=c" {
		t.Errorf("environment %v", envs)
	}
	if mounts := info.Config.GetMounts(); len(mounts) != 1 || mounts[0].HostPath != dir {
		t.Errorf("mounts %v", mounts)
	}
	if info.SandboxID != p.ID || info.PID == 0 || info.Spec.Process == nil {
		t.Errorf("%+v", info)
	}
}

func TestVerboseStatusTellsWhatAPersonNeeds(t *testing.T) {
	nodetest.BerthOnly(t, "the info is Berth's own")
	n := nodetest.Shared(t)
	ctx := nodetest.Context(t)
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD}))
	c := p.Run(nodetest.Mounts(&cri.Mount{HostPath: t.TempDir(), ContainerPath: "/data", Readonly: true}))
	parse := func(info map[string]string, err error) map[string]any {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		var out map[string]any
		if err := json.Unmarshal([]byte(info["info"]), &out); err != nil {
			t.Fatalf("%v: %q", err, info)
		}
		return out
	}
	need := func(what string, info map[string]any, keys ...string) {
		t.Helper()
		for _, key := range keys {
			switch v := info[key].(type) {
			case nil:
				t.Errorf("%s: %s is missing", what, key)
			case string:
				if v == "" {
					t.Errorf("%s: %s is empty", what, key)
				}
			case float64:
				if v == 0 {
					t.Errorf("%s: %s is 0", what, key)
				}
			case []any:
				if len(v) == 0 {
					t.Errorf("%s: %s is empty", what, key)
				}
			case map[string]any:
				if len(v) == 0 {
					t.Errorf("%s: %s is empty", what, key)
				}
			}
		}
	}
	pod, err := n.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
	info := parse(pod.GetInfo(), err)
	need("pod", info, "pid", "phase", "cgroupParent", "cgroup", "namespaces", "ips", "interface", "network",
		"mounts", "directory",
		"stateDirectory", "timings", "config", "runtimeSpec")
	for kind, path := range info["namespaces"].(map[string]any) {
		if !exists(path.(string)) {
			t.Errorf("the pod's %s namespace is not at %v", kind, path)
		}
	}
	container, err := n.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
	info = parse(container.GetInfo(), err)
	need("container", info, "sandboxID", "pid", "phase", "cgroup", "namespaces", "directory", "rootfs",
		"imageID", "mounts",
		"runtimeSpec", "timings", "config", "user")
	if pid, err := n.ContainerPID(c.ID); err != nil || info["pid"] != float64(pid) {
		t.Errorf("pid %v, want %d (%v)", info["pid"], pid, err)
	}
	if !strings.Contains(fmt.Sprint(info["mounts"]), "/data") {
		t.Errorf("the mount is missing: %v", info["mounts"])
	}
	image, err := n.Images.ImageStatus(ctx,
		&cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: node.Busybox}, Verbose: true})
	need("image", parse(image.GetInfo(), err), "imageSpec", "diffIDs", "platform", "pinned", "size")
	runtime, err := n.Runtime.Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil || len(runtime.Info) < 2 {
		t.Errorf("runtime: %v, %v", runtime.GetInfo(), err)
	}
}

func TestTheOtherLimitsAreOnTheCgroupToo(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	sizes, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil {
		t.Fatal(err)
	}
	huge := slices.ContainsFunc(sizes, func(s string) bool { return strings.HasSuffix(s, "-2048kB") }) &&
		(exists("/sys/fs/cgroup/hugetlb") || exists("/sys/fs/cgroup/cgroup.controllers"))
	c := p.Run(func(c *cri.ContainerConfig) {
		r := c.Linux.Resources
		r.CpusetMems = "0"
		r.MemoryLimitInBytes, r.MemorySwapLimitInBytes = 64<<20, 96<<20
		if huge {
			r.HugepageLimits = []*cri.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}}
		}
	})
	if got := cgroupFile(t, c, "cpuset/cpuset.mems", "cpuset.mems"); got != "0" {
		t.Errorf("memory nodes: %s", got)
	}
	swap := slices.ContainsFunc(cgroups(t, c), func(dir string) bool {
		return exists(dir+"/memory.memsw.limit_in_bytes") || exists(dir+"/memory.swap.max")
	})
	if swap {
		// v1 counts memory and swap together, v2 swap alone.
		if got := cgroupFile(t, c, "memory/memory.memsw.limit_in_bytes", "memory.swap.max"); got != "100663296" &&
			got != "33554432" {
			t.Errorf("swap: %s", got)
		}
	} else {
		t.Log("this kernel does not limit swap")
	}
	if huge {
		if got := cgroupFile(t, c, "hugetlb/hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max"); got != "4194304" {
			t.Errorf("huge pages: %s", got)
		}
	} else {
		t.Log("this kernel does not limit huge pages")
	}
}

func TestLimitsThatTheKernelRefusesSayWhy(t *testing.T) {
	nodetest.BerthOnly(t, "the codes are Berth's")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	update := func(r *cri.LinuxContainerResources) (container, pod error) {
		_, container = n.Runtime.UpdateContainerResources(nodetest.Context(t),
			&cri.UpdateContainerResourcesRequest{ContainerId: c.ID, Linux: r})
		_, pod = n.Runtime.UpdatePodSandboxResources(nodetest.Context(t),
			&cri.UpdatePodSandboxResourcesRequest{PodSandboxId: p.ID, Resources: r})
		return container, pod
	}
	container, pod := update(&cri.LinuxContainerResources{CpusetMems: "900"})
	nodetest.WantCode(t, container, codes.InvalidArgument)
	nodetest.WantCode(t, pod, codes.InvalidArgument)
	if !exists("/sys/fs/cgroup/cgroup.controllers") { // v2 takes any limit, and ends processes
		container, pod = update(&cri.LinuxContainerResources{MemoryLimitInBytes: 1})
		nodetest.WantCode(t, container, codes.FailedPrecondition)
		nodetest.WantCode(t, pod, codes.FailedPrecondition)
	}
	for name, value := range map[string]string{"net.ipv4.no_such_sysctl": "1", "net.ipv4.ip_forward": "words"} {
		_, err := n.Runtime.RunPodSandbox(nodetest.Context(t), &cri.RunPodSandboxRequest{
			Config: nodetest.PodConfig(n, func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{name: value} }),
		})
		nodetest.WantCode(t, err, codes.InvalidArgument)
	}
	c.Sh("true")
}

// TestARefusedUpdateLeavesNoPartInForce: the kernel takes CPUs before it refuses memory nodes, and a file of cgroup v2
// before one that it does not have. Neither had a value before that could be given again. With systemd, its next look
// at all units does not bring them back. What counts of CPU sets on v2 is which CPUs the cgroup has in effect.
func TestARefusedUpdateLeavesNoPartInForce(t *testing.T) {
	nodetest.BerthOnly(t, "containerd does not undo")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	names := []string{"cpuset.cpus", "cpuset.mems"}
	if exists("/sys/fs/cgroup/cgroup.controllers") {
		names = []string{"cpuset.cpus.effective", "cpuset.mems.effective", "memory.high"}
	}
	files := map[string]string{}
	look := func(what string) {
		t.Helper()
		for _, dir := range cgroups(t, c) {
			for _, file := range names {
				for _, path := range []string{filepath.Join(dir, file), filepath.Join(filepath.Dir(dir), file)} {
					data, err := os.ReadFile(path)
					if err != nil {
						continue
					}
					before, seen := files[path]
					if seen && before != string(data) {
						t.Errorf("%s: %s has %q, and had %q", what, path, data, before)
					}
					files[path] = string(data)
				}
			}
		}
	}
	look("at first")
	if len(files) == 0 {
		t.Fatal("there are no such files")
	}
	update := func(r *cri.LinuxContainerResources) {
		t.Helper()
		_, container := n.Runtime.UpdateContainerResources(nodetest.Context(t),
			&cri.UpdateContainerResourcesRequest{ContainerId: c.ID, Linux: r})
		_, pod := n.Runtime.UpdatePodSandboxResources(nodetest.Context(t),
			&cri.UpdatePodSandboxResourcesRequest{PodSandboxId: p.ID, Resources: r})
		if container == nil || pod == nil {
			t.Errorf("%v is not refused: container %v, pod %v", r, container, pod)
		}
	}
	update(&cri.LinuxContainerResources{CpusetCpus: "0", CpusetMems: "900"})
	look("a memory node that does not exist")
	if exists("/sys/fs/cgroup/cgroup.controllers") {
		for range 8 { // in the order of a map
			update(&cri.LinuxContainerResources{
				Unified: map[string]string{"memory.high": "104857600", "memory.nosuch": "1"}})
		}
		look("a file that does not exist")
	}
	if systemctl, err := exec.LookPath("systemctl"); err == nil && exists("/run/systemd/system") {
		if out, err := exec.Command(systemctl, "daemon-reload").CombinedOutput(); err != nil {
			t.Errorf("daemon-reload: %v: %s", err, out)
		}
		look("systemd has read its units again")
	}
	c.Sh("true")
}
