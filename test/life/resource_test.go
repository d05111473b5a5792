package life

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestResourcesAreOnTheCgroup(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{
			CpuPeriod: 50000, CpuQuota: 25000, CpuShares: 512, MemoryLimitInBytes: 64 << 20, CpusetCpus: "0", OomScoreAdj: 500,
		}
	})
	check := func(v1, v2, wantV1, wantV2 string) {
		t.Helper()
		if got := cgroupFile(t, c, v1, v2); got != wantV1 && got != wantV2 {
			t.Errorf("%s or %s is %q, want %q or %q", v1, v2, got, wantV1, wantV2)
		}
	}
	check("memory/memory.limit_in_bytes", "memory.max", "67108864", "67108864")
	check("cpu/cpu.cfs_quota_us", "cpu.max", "25000", "25000 50000")
	check("cpu/cpu.shares", "cpu.weight", "512", "59")
	check("cpuset/cpuset.cpus", "cpuset.cpus", "0", "0")
	if got := c.Sh("cat /proc/1/oom_score_adj"); got != "500" {
		t.Errorf("oom_score_adj is %s", got)
	}
	got := c.Status().GetResources().GetLinux()
	if got.GetMemoryLimitInBytes() != 64<<20 || got.GetCpuQuota() != 25000 || got.GetCpuPeriod() != 50000 ||
		got.GetCpuShares() != 512 {
		if !nodetest.Containerd() {
			t.Errorf("status says %v", got)
		}
	}

	_, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{CpuPeriod: 50000, CpuQuota: 40000, CpuShares: 1024,
			MemoryLimitInBytes: 128 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	check("memory/memory.limit_in_bytes", "memory.max", "134217728", "134217728")
	check("cpu/cpu.cfs_quota_us", "cpu.max", "40000", "40000 50000")
	check("cpu/cpu.shares", "cpu.weight", "1024", "100")
	check("cpuset/cpuset.cpus", "cpuset.cpus", "0", "0") // what is not named stays
	if got := c.Status().GetResources().GetLinux().GetMemoryLimitInBytes(); got != 128<<20 && !nodetest.Containerd() {
		t.Errorf("status after the update says %d", got)
	}
}

// TestAnUpdateThatIsRefusedInPartChangesNoLimit: the kernel takes a limit of memory before it refuses a share of the
// processors above the pod's. Seen to fail when a limit that there was not before stayed in force: the container could
// be killed for memory by an update that had failed.
func TestAnUpdateThatIsRefusedInPartChangesNoLimit(t *testing.T) {
	nodetest.BerthOnly(t, "it leaves the limit")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 20000}
	}).Run(func(c *cri.ContainerConfig) { c.Linux.Resources = &cri.LinuxContainerResources{} })
	limits := func() string {
		return cgroupFile(t, c, "memory/memory.limit_in_bytes", "memory.max") + ", " +
			cgroupFile(t, c, "cpu/cpu.shares", "cpu.weight") + ", " + cgroupFile(t, c, "cpu/cpu.cfs_quota_us", "cpu.max")
	}
	before := limits()
	_, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{
			MemoryLimitInBytes: 64 << 20, CpuShares: 77, CpuPeriod: 100000, CpuQuota: 90000,
		},
	})
	if err == nil {
		t.Skip("this kernel gives a container more of the processors than its pod has")
	}
	if after := limits(); after != before {
		t.Errorf("after %v the limits are %s, and were %s", err, after, before)
	}
	if got := c.Status().GetResources().GetLinux().GetMemoryLimitInBytes(); got != 0 {
		t.Errorf("the status says %d bytes of memory", got)
	}
}

// TestSwapFollowsUpdatesOfMemory: an update that names no swap leaves a container that has none without, and an update
// that takes the limit of memory away takes that of swap along. Seen to fail when a lower limit of memory gave the
// container the difference as swap, and when an update without a limit was refused for the limit of swap.
func TestSwapFollowsUpdatesOfMemory(t *testing.T) {
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run(func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20}
	})
	const memsw, swapMax = "memory.memsw.limit_in_bytes", "memory.swap.max"
	if !slices.ContainsFunc(cgroups(t, c), func(dir string) bool {
		return exists(filepath.Join(dir, memsw)) || exists(filepath.Join(dir, swapMax))
	}) {
		t.Skip("this kernel does not limit swap")
	}
	for _, step := range []struct {
		update         int64 // of memory
		wantV1, wantV2 string
	}{
		{update: 128 << 20, wantV1: "134217728", wantV2: "0"},
		{update: 32 << 20, wantV1: "33554432", wantV2: "0"},
		{update: -1, wantV1: "9223372036854771712", wantV2: "max"},
		{update: 48 << 20, wantV1: "50331648", wantV2: "0"},
	} {
		_, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
			ContainerId: c.ID, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: step.update},
		})
		if err != nil {
			t.Fatalf("a limit of %d: %v", step.update, err)
		}
		if got := cgroupFile(t, c, memsw, swapMax); got != step.wantV1 && got != step.wantV2 {
			t.Errorf("with %d bytes of memory, swap is %s, want %s or %s", step.update, got, step.wantV1, step.wantV2)
		}
	}
}

// TestVerboseStatusShowsTheSpecificationThatIsInForce: after an update of a running container too, and what the
// update does not name stays.
func TestVerboseStatusShowsTheSpecificationThatIsInForce(t *testing.T) {
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run(func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500}
	})
	_, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, OomScoreAdj: 600},
	})
	if err != nil {
		t.Fatal(err)
	}
	status, err := n.Runtime.ContainerStatus(nodetest.Context(t),
		&cri.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		RuntimeSpec specs.Spec `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	linux, process := info.RuntimeSpec.Linux.Resources, info.RuntimeSpec.Process
	if *linux.Memory.Limit != 128<<20 || *linux.CPU.Shares != 512 || len(linux.Devices) == 0 {
		t.Errorf("the specification has memory %d, shares %d and %d device rules", *linux.Memory.Limit,
			*linux.CPU.Shares, len(linux.Devices))
	}
	if *process.OOMScoreAdj != 600 && !nodetest.Containerd() { // containerd changes no score
		t.Errorf("the specification has oom_score_adj %d", *process.OOMScoreAdj)
	}
}

func TestAnUpdateOfACreatedContainerHoldsOnceItRuns(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Create(func(c *cri.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 64 << 20 })
	if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 96 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	c.Start()
	if got := cgroupFile(t, c, "memory/memory.limit_in_bytes", "memory.max"); got != "100663296" {
		t.Errorf("got %s", got)
	}
}

func TestUnifiedResourcesAreWrittenOnV2AndRefusedOnV1(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c, err := p.TryCreate(func(c *cri.ContainerConfig) {
		c.Linux.Resources.Unified = map[string]string{"memory.low": "1048576"}
	})
	if err == nil {
		err = c.TryStart()
	}
	if exists("/sys/fs/cgroup/cgroup.controllers") {
		if err != nil {
			t.Fatal(err)
		}
		if got := cgroupFile(t, c, "", "memory.low"); got != "1048576" {
			t.Errorf("got %s", got)
		}
	} else if err == nil && !nodetest.Containerd() {
		t.Error("cgroup v1 has no unified files, and the request is accepted")
	}
}

func TestContainersLiveUnderThePodsCgroup(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	found := cgroups(t, c)
	if len(found) == 0 {
		t.Fatalf("none under %s", p.Config.Linux.CgroupParent)
	}
	for _, dir := range found {
		if !strings.Contains(dir, p.Config.Linux.CgroupParent+"/") {
			t.Errorf("%s is not under %s", dir, p.Config.Linux.CgroupParent)
		}
	}
}

func TestStatsSayWhatAContainerUses(t *testing.T) {
	n := nodetest.Shared(t)
	labels := map[string]string{"suite": "stats"}
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Labels = labels })
	c := p.Run(nodetest.Sh("head -c 3000000 /dev/zero >/file; echo written; while :; do :; done"),
		func(c *cri.ContainerConfig) {
			c.Labels = labels
			c.Linux.Resources = &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 20000, MemoryLimitInBytes: 64 << 20}
		})
	c.WaitLog("written")
	ctx := nodetest.Context(t)
	var first, last *cri.ContainerStats
	read := func() *cri.ContainerStats {
		t.Helper()
		r, err := n.Runtime.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: c.ID})
		if err != nil {
			t.Fatal(err)
		}
		return r.Stats
	}
	first = read()
	nodetest.Eventually(t, 15*time.Second, "usage grows and is there in full", func() error {
		last = read()
		if last.GetCpu().GetUsageCoreNanoSeconds().GetValue() <= first.GetCpu().GetUsageCoreNanoSeconds().GetValue() {
			return fmt.Errorf("CPU usage stays at %v", last.GetCpu())
		}
		if last.GetMemory().GetWorkingSetBytes().GetValue() == 0 {
			return fmt.Errorf("memory %v", last.GetMemory())
		}
		if used := last.GetWritableLayer().GetUsedBytes().GetValue(); used < 3000000 {
			return fmt.Errorf("the writable layer holds %d bytes", used)
		}
		return nil
	})
	if last.Attributes.Id != c.ID || last.Attributes.Metadata.Name != c.Config.Metadata.Name ||
		last.Attributes.Labels["suite"] != "stats" {
		t.Errorf("attributes: %v", last.Attributes)
	}
	if last.Cpu.Timestamp <= first.Cpu.Timestamp {
		t.Errorf("the reading of %d follows that of %d", last.Cpu.Timestamp, first.Cpu.Timestamp)
	}
	list, err := n.Runtime.ListContainerStats(ctx,
		&cri.ListContainerStatsRequest{Filter: &cri.ContainerStatsFilter{LabelSelector: labels}})
	if err != nil || len(list.Stats) != 1 || list.Stats[0].Attributes.Id != c.ID {
		t.Errorf("list: %v, %v", list, err)
	}
	list, err = n.Runtime.ListContainerStats(ctx,
		&cri.ListContainerStatsRequest{Filter: &cri.ContainerStatsFilter{PodSandboxId: p.ID}})
	if err != nil || len(list.Stats) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	pods, err := n.Runtime.ListPodSandboxStats(ctx,
		&cri.ListPodSandboxStatsRequest{Filter: &cri.PodSandboxStatsFilter{LabelSelector: labels}})
	if err != nil || len(pods.Stats) != 1 {
		t.Fatalf("pods: %v, %v", pods, err)
	}
	pod, err := n.Runtime.PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: p.ID})
	if err != nil {
		t.Fatal(err)
	}
	linux := pod.Stats.GetLinux()
	if linux.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 ||
		linux.GetMemory().GetWorkingSetBytes().GetValue() == 0 ||
		linux.GetNetwork().GetDefaultInterface().GetName() == "" || linux.GetProcess().GetProcessCount().GetValue() == 0 ||
		len(linux.GetContainers()) != 1 {
		t.Errorf("pod stats: %v", linux)
	}
}

func TestImageStoreSaysWhatItTakes(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.RunPod(t, n).Run()
	r, err := n.Images.ImageFsInfo(nodetest.Context(t), &cri.ImageFsInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.ImageFilesystems) == 0 || r.ImageFilesystems[0].GetFsId().GetMountpoint() == "" {
		t.Fatalf("got %v", r)
	}
	nodetest.Eventually(t, 15*time.Second, "it takes bytes", func() error {
		r, err := n.Images.ImageFsInfo(nodetest.Context(t), &cri.ImageFsInfoRequest{})
		if err == nil && r.ImageFilesystems[0].GetUsedBytes().GetValue() == 0 {
			err = fmt.Errorf("got %v", r)
		}
		return err
	})
}

// TestAContainerThatHasEndedIsCounted: its writable layer takes room until it is removed, and it uses no processor time
// or memory any more. Seen to fail when ImageFsInfo counted the layers of running containers alone, and stats told of
// the processor time that a container had used when they were read last.
func TestAContainerThatHasEndedIsCounted(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "it counts its snapshots, when it has measured them")
	n := nodetest.Shared(t)
	const size = 32 << 20
	c := nodetest.RunPod(t, n).Run(nodetest.Sh(
		"head -c 33554432 /dev/zero >/file; while ! [ -e /end ]; do sleep 0.1; done"))
	stats := func() *cri.ContainerStats {
		t.Helper()
		r, err := n.Runtime.ContainerStats(nodetest.Context(t), &cri.ContainerStatsRequest{ContainerId: c.ID})
		if err != nil {
			t.Fatal(err)
		}
		return r.Stats
	}
	if stats().GetCpu() == nil {
		t.Errorf("while it runs, its stats are %v", stats())
	}
	c.Sh("touch /end")
	c.WaitExit()
	if s := stats(); s.GetCpu() != nil || s.GetMemory() != nil || s.GetAttributes().GetId() != c.ID {
		t.Errorf("when it has ended, its stats are %v", s)
	}
	nodetest.Eventually(t, time.Minute, "the layer is measured", func() error {
		r, err := n.Images.ImageFsInfo(nodetest.Context(t), &cri.ImageFsInfoRequest{})
		if err != nil {
			return err
		}
		one, all := stats().GetWritableLayer().GetUsedBytes().GetValue(), r.ContainerFilesystems[0].GetUsedBytes().GetValue()
		if one < size || all < one {
			return fmt.Errorf("the container has %d bytes, and all containers have %d", one, all)
		}
		return nil
	})
}

func TestEventsFollowTheLifeOfAPod(t *testing.T) {
	nodetest.BerthOnly(t, "GetContainerEvents is newer")
	n := nodetest.Shared(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stream, err := n.Runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil { // comes when no event is missed any more
		t.Fatal(err)
	}
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh("exit 3"))
	c.WaitExit()
	c.Remove()
	p.Stop()
	p.Remove()
	var got []string
	for {
		event, err := stream.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		who := ""
		switch event.ContainerId {
		case c.ID:
			who = "container"
		case p.ID:
			who = "pod"
		default:
			continue // of another test
		}
		kind := strings.TrimSuffix(strings.TrimPrefix(event.ContainerEventType.String(), "CONTAINER_"), "_EVENT")
		got = append(got, who+" "+kind)
		if kind != "DELETED" || who != "pod" {
			if event.PodSandboxStatus.GetId() != p.ID {
				t.Errorf("%s %s has the pod's status %v", who, kind, event.PodSandboxStatus)
			}
		}
		if who == "container" && kind == "STOPPED" {
			if len(event.ContainersStatuses) != 1 || event.ContainersStatuses[0].ExitCode != 3 {
				t.Errorf("the statuses at its end: %v", event.ContainersStatuses)
			}
		}
		if age := time.Since(time.Unix(0, event.CreatedAt)); age < 0 || age > node.Patience(time.Minute) {
			t.Errorf("%s %s was at %s", who, kind, strconv.FormatInt(event.CreatedAt, 10))
		}
		if who == "pod" && kind == "DELETED" {
			break
		}
	}
	want := []string{"pod CREATED", "pod STARTED", "container CREATED", "container STARTED", "container STOPPED",
		"container DELETED", "pod STOPPED", "pod DELETED"}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAnUpdateOfWhatIsGoneIsNotFound(t *testing.T) {
	n := nodetest.Shared(t)
	_, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: strings.Repeat("f", 64), Linux: &cri.LinuxContainerResources{CpuShares: 2},
	})
	nodetest.WantCode(t, err, codes.NotFound)
}

func TestAHandlersUlimitsReachItsContainers(t *testing.T) {
	nodetest.BerthOnly(t, "the configuration of handlers is Berth's own")
	n := nodetest.Start(t, node.Options{
		Config: "ulimits = [\"nofile=1111:2222\", \"core=4096\"]\n",
		Tables: "[runtimes.own]\ntype = \"builtin\"\nulimits = [\"nofile=333:444\"]\n",
	})
	const script = "ulimit -Sn; ulimit -Hn; ulimit -c"
	plain, own := nodetest.RunPod(t, n), nodetest.RunPodHandler(t, n, "own")
	if got := plain.Output(script); got != "1111\n2222\n8\n" {
		t.Errorf("the default handler: %q", got)
	}
	if got := own.Output(script); got != "333\n444\n8\n" {
		t.Errorf("the other handler: %q", got)
	}
	if got := own.Run().Sh("ulimit -Sn; ulimit -Hn"); got != "333\n444" {
		t.Errorf("an exec under the other handler: %q", got)
	}
}

// TestAnyNameOfAnInterfaceIsInTheStatistics: a container with CAP_NET_ADMIN gives interfaces names that are no text.
// Seen to fail where the names were passed on as they are: no pod had statistics or metrics.
func TestAnyNameOfAnInterfaceIsInTheStatistics(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh(`ip link add "$(printf 'a\377b')" type bridge && echo made; exec sleep 1000`),
		nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.Capabilities = &cri.Capability{AddCapabilities: []string{"NET_ADMIN"}}
		}))
	c.WaitLog("made")
	ctx := nodetest.Context(t)
	nodetest.Eventually(t, 15*time.Second, "the interface is in the statistics", func() error {
		list, err := n.Runtime.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, pod := range list.Stats {
			if pod.Attributes.Id == p.ID {
				for _, i := range pod.Linux.Network.Interfaces {
					names = append(names, i.Name)
				}
			}
		}
		if !slices.Contains(names, "a:ffb") {
			return fmt.Errorf("the interfaces are %q", names)
		}
		return nil
	})
	metrics, err := n.Runtime.ListPodSandboxMetrics(ctx, &cri.ListPodSandboxMetricsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(metrics); !strings.Contains(text, "a:ffb") {
		t.Errorf("the interface is in no metric: %s", text)
	}
}
