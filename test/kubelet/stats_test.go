package kubelet

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/test/node"
)

// summary is what the tests read of stats/summary (k8s.io/kubelet/pkg/apis/stats/v1alpha1).
type summary struct {
	Pods []podStats `json:"pods"`
}

type podStats struct {
	PodRef struct {
		UID string `json:"uid"`
	} `json:"podRef"`
	CPU          *cpuStats    `json:"cpu"`
	Memory       *memoryStats `json:"memory"`
	ProcessStats *struct {
		ProcessCount *uint64 `json:"process_count"`
	} `json:"process_stats"`
	Network *struct {
		Name    string  `json:"name"`
		RxBytes *uint64 `json:"rxBytes"`
		TxBytes *uint64 `json:"txBytes"`
	} `json:"network"`
	Containers []struct {
		Name   string       `json:"name"`
		CPU    *cpuStats    `json:"cpu"`
		Memory *memoryStats `json:"memory"`
		Rootfs *fsStats     `json:"rootfs"`
		Logs   *fsStats     `json:"logs"`
	} `json:"containers"`
	Volumes []struct {
		Name string `json:"name"`
		fsStats
	} `json:"volume"`
	EphemeralStorage *fsStats `json:"ephemeral-storage"`
}

type cpuStats struct {
	UsageNanoCores       *uint64 `json:"usageNanoCores"`
	UsageCoreNanoSeconds *uint64 `json:"usageCoreNanoSeconds"`
}

type memoryStats struct {
	UsageBytes      *uint64 `json:"usageBytes"`
	WorkingSetBytes *uint64 `json:"workingSetBytes"`
	RSSBytes        *uint64 `json:"rssBytes"`
}

type fsStats struct {
	UsedBytes     *uint64 `json:"usedBytes"`
	CapacityBytes *uint64 `json:"capacityBytes"`
	InodesUsed    *uint64 `json:"inodesUsed"`
}

// above is an error where a figure is missing or less than a bound.
func above(name string, value *uint64, bound uint64) error {
	if value == nil {
		return fmt.Errorf("%s is missing", name)
	}
	if *value < bound {
		return fmt.Errorf("%s is %d, less than %d", name, *value, bound)
	}
	return nil
}

// busy is a pod that uses processor, 8 MiB of memory, 4 MiB of its root, 1 MiB of a volume, its log and the network.
func busy(k *kubelet) *v1.Pod {
	spec := manifest("busy",
		sh("main", "head -c 4194304 /dev/zero >/file; head -c 1048576 /dev/zero >/volume/file; echo logged; "+
			"x=$(head -c 8388608 /dev/zero | tr '\\0' x); (while :; do :; done) & "+
			"while :; do wget -q -O /dev/null http://"+k.node.PodCIDR.Addr().Next().String()+":1/; sleep 0.2; done",
			limited("cpu=50m,memory=32Mi", "cpu=200m,memory=128Mi"), mounted("volume", "/volume")),
		sh("idle", sleep))
	emptyDir(spec, "volume", v1.EmptyDirVolumeSource{})
	return spec
}

// wantSummary waits until stats/summary has a busy pod's figures.
func wantSummary(t *testing.T, p *pod, whole bool) {
	t.Helper()
	eventually(t, 60*time.Second, "stats/summary has the pod's figures", func() error {
		body, err := p.k.get(t.Context(), "/stats/summary")
		if err != nil {
			return err
		}
		var all summary
		if err := json.Unmarshal([]byte(body), &all); err != nil {
			return err
		}
		for _, stats := range all.Pods {
			if stats.PodRef.UID == string(p.spec.UID) {
				return stats.check(whole)
			}
		}
		return fmt.Errorf("it has no such pod among %d", len(all.Pods))
	})
}

func (s *podStats) check(whole bool) error {
	if s.CPU == nil || s.Memory == nil || s.EphemeralStorage == nil {
		return fmt.Errorf("CPU, memory or storage of the pod is missing: %+v", s)
	}
	checks := []error{
		above("CPU of the pod", s.CPU.UsageCoreNanoSeconds, 1e8),
		above("memory of the pod", s.Memory.WorkingSetBytes, 8<<20),
		above("storage of the pod", s.EphemeralStorage.UsedBytes, 5<<20),
	}
	if whole {
		// cAdvisor does not know the network of a runtime that it does not know.
		if s.Network == nil || s.ProcessStats == nil {
			return fmt.Errorf("network or processes of the pod are missing: %+v", s)
		}
		checks = append(checks, above("bytes out", s.Network.TxBytes, 100), above("bytes in", s.Network.RxBytes, 100),
			above("processes", s.ProcessStats.ProcessCount, 3))
	}
	names := ""
	for _, c := range s.Containers {
		names += c.Name + " "
		if c.CPU == nil || c.Memory == nil || c.Rootfs == nil || c.Logs == nil {
			return fmt.Errorf("CPU, memory, root or log of container %s is missing: %+v", c.Name, c)
		}
		if c.Name == "main" {
			checks = append(checks,
				above("CPU of main", c.CPU.UsageCoreNanoSeconds, 1e8), above("CPU rate of main", c.CPU.UsageNanoCores, 5e7),
				above("working set of main", c.Memory.WorkingSetBytes, 8<<20), above("RSS of main", c.Memory.RSSBytes, 8<<20),
				above("usage of main", c.Memory.UsageBytes, 8<<20),
				above("root of main", c.Rootfs.UsedBytes, 4<<20), above("inodes of main", c.Rootfs.InodesUsed, 1),
				above("capacity of main", c.Rootfs.CapacityBytes, 1<<20), above("log of main", c.Logs.UsedBytes, 10))
		}
	}
	if len(s.Containers) != 2 {
		return fmt.Errorf("it has containers %s", names)
	}
	for _, v := range s.Volumes {
		if v.Name == "volume" {
			checks = append(checks, above("the volume", v.UsedBytes, 1<<20))
		}
	}
	if len(s.Volumes) == 0 {
		return fmt.Errorf("it has no volumes")
	}
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

// series are the lines of Prometheus metrics of a name that have these texts.
func series(metrics, name string, texts ...string) []string {
	var lines []string
next:
	for line := range strings.Lines(metrics) {
		if !strings.HasPrefix(line, name+"{") {
			continue
		}
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

// wantSeries waits until a page of metrics has series of these names with these texts.
func wantSeries(t *testing.T, k *kubelet, page string, names []string, texts ...string) {
	t.Helper()
	eventually(t, 40*time.Second, page+" has the series", func() error {
		metrics, err := k.get(t.Context(), page)
		if err != nil {
			return err
		}
		var missing []string
		for _, name := range names {
			if len(series(metrics, name, texts...)) == 0 {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("no %v with %v", missing, texts)
		}
		return nil
	})
}

var (
	containerSeries = []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"}
	podSeries       = []string{"pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes"}
)

// atContainerd is a node that answers where a kubelet is told to look for containerd, and that kubelet.
func atContainerd(t *testing.T, o options) *kubelet {
	t.Helper()
	dir, err := os.MkdirTemp("", "c") // short: a socket's path has 107 characters at the most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "containerd.sock")
	o.containerd = socket
	return own(t, node.Options{Config: fmt.Sprintf("containerd_address = %q\n", socket)}, o)
}

// networkSeries are those of a pod's network.
var networkSeries = []string{"container_network_receive_bytes_total", "container_network_transmit_bytes_total"}

// wantPodSeries waits until cAdvisor's series say which pod and container they are of.
func wantPodSeries(t *testing.T, p *pod) {
	t.Helper()
	ofPod := []string{`pod="` + p.name + `"`, `namespace="default"`}
	wantSeries(t, p.k, "/metrics/cadvisor", append(slices.Clip(containerSeries),
		"container_processes", "container_oom_events_total", "container_spec_memory_limit_bytes",
	), append(slices.Clip(ofPod), `container="main"`, `image="`+node.Busybox+`"`)...)
	wantSeries(t, p.k, "/metrics/cadvisor", networkSeries, append(slices.Clip(ofPod), `interface="eth0"`)...)
}

// TestStatsFromCAdvisor is the kubelet's default: containers' figures from the runtime, pods' from the cgroups.
// cAdvisor takes Berth for containerd, so that its series and the summary have what a node of containerd has.
func TestStatsFromCAdvisor(t *testing.T) {
	t.Parallel()
	k := atContainerd(t, options{})
	p := k.run(t, busy(k))
	p.running()
	wantPodSeries(t, p)
	wantSummary(t, p, true)
	wantSeries(t, k, "/metrics/resource", containerSeries, `container="main"`, `pod="`+p.name+`"`)
	wantSeries(t, k, "/metrics/resource", podSeries, `pod="`+p.name+`"`)
}

// TestAPodsNetworkIsCountedOnAfterARestart of the container whose process cAdvisor reads it from.
func TestAPodsNetworkIsCountedOnAfterARestart(t *testing.T) {
	t.Parallel()
	k := own(t, node.Options{}, options{ask: true})
	p := k.run(t, busy(k))
	p.running()
	wantPodSeries(t, p)
	// Both end, the older one first: whichever stands for the pod is another one then.
	for _, name := range []string{"main", "idle"} {
		if err := syscall.Kill(p.pid(name), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	p.until(60*time.Second, "both run again", func(now *v1.Pod) error {
		for _, name := range []string{"main", "idle"} {
			if s := status(now, name); s.RestartCount == 0 || s.State.Running == nil {
				return fmt.Errorf("%s: %+v", name, s)
			}
		}
		return nil
	})
	sent := func() (float64, error) {
		metrics, err := k.get(t.Context(), "/metrics/cadvisor")
		if err != nil {
			return 0, err
		}
		lines := series(metrics, "container_network_transmit_bytes_total", `pod="`+p.name+`"`, `interface="eth0"`)
		if len(lines) != 1 {
			return 0, fmt.Errorf("series %q", lines)
		}
		return strconv.ParseFloat(strings.Fields(lines[0][strings.LastIndex(lines[0], "}")+1:])[0], 64)
	}
	var before float64
	// What cAdvisor has of the dead process it tells for two minutes, and no longer: figures that grow are of another one.
	eventually(t, 60*time.Second, "the pod's bytes grow", func() error {
		now, err := sent()
		if err != nil {
			return err
		}
		if before == 0 {
			before = now
		}
		if now <= before {
			return fmt.Errorf("%v bytes after %v", now, before)
		}
		return nil
	})
}

// TestStatsOfAKubeletThatFindsNoContainerd is what is left without containerd_address: series name cgroups
// and not pods.
func TestStatsOfAKubeletThatFindsNoContainerd(t *testing.T) {
	t.Parallel()
	k := own(t, node.Options{}, options{})
	p := k.run(t, busy(k))
	p.running()
	wantSummary(t, p, false)
	wantSeries(t, k, "/metrics/cadvisor", containerSeries, p.container("main").Id)
	wantSeries(t, k, "/metrics/resource", containerSeries, `container="main"`, `pod="`+p.name+`"`)
	wantSeries(t, k, "/metrics/resource", podSeries, `pod="`+p.name+`"`)
}

// TestStatsFromTheRuntime turns PodAndContainerStatsFromCRI on: all figures, and the series in place of cAdvisor's,
// come from the runtime.
func TestStatsFromTheRuntime(t *testing.T) {
	t.Parallel()
	k := atContainerd(t, options{gates: map[string]bool{"PodAndContainerStatsFromCRI": true}})
	p := k.run(t, busy(k))
	p.running()
	wantSummary(t, p, true)
	wantSeries(t, k, "/metrics/resource", containerSeries, `container="main"`, `pod="`+p.name+`"`)
	wantSeries(t, k, "/metrics/resource", podSeries, `pod="`+p.name+`"`)
	wantSeries(t, k, "/metrics/cadvisor", append(slices.Clip(containerSeries),
		"container_fs_usage_bytes", "container_processes", "container_oom_events_total",
	), `container="main"`, `pod="`+p.name+`"`, `namespace="default"`)
	wantSeries(t, k, "/metrics/cadvisor",
		[]string{"container_network_receive_bytes_total", "container_network_transmit_bytes_total"},
		`pod="`+p.name+`"`, `interface="eth0"`)
}
