package cadvisor

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/cgroup"
	"berth/internal/model"
	"berth/internal/stats"
)

// collector hands metrics to a registry as a kubelet does.
type collector struct {
	metrics []model.Metric
}

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range Descriptors() {
		ch <- prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.metrics {
		i := slices.IndexFunc(Descriptors(), func(d model.MetricDescriptor) bool { return d.Name == m.Name })
		d := Descriptors()[i]
		kind := prometheus.CounterValue
		if m.Gauge {
			kind = prometheus.GaugeValue
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(d.Name, d.Help, d.Labels, nil),
			kind, float64(m.Value), m.Labels...)
	}
}

// running is a subject that is a real process in a cgroup of its own.
func running(t *testing.T) *Subject {
	t.Helper()
	h, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("/berth-test-cadvisor-%d", os.Getpid())
	if err := h.Create(name); err != nil {
		t.Skipf("cgroups cannot be made: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.Remove(ctx, name); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range h.Dirs(name) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(cmd.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	layer := t.TempDir()
	sampler, err := stats.New(stats.Config{Measure: func(context.Context, string) (uint64,
		uint64, error) {
		return 4096, 3, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sampler.Close)
	began := time.Now()
	target := []stats.Target{{ID: "c", Cgroup: name, Layer: layer, PID: cmd.Process.Pid, Network: true}}
	r := sampler.Details(t.Context(), target)[0]
	// A reading does not wait long for the first figure of a layer, which may come with a later one where the machine
	// is busy.
	for deadline := time.Now().Add(time.Minute); (r.Layer == nil ||
		r.Layer.UsedBytes == 0) && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		r = sampler.Details(t.Context(), target)[0]
	}
	disk, err := stats.StatFilesystem(layer)
	if err != nil {
		t.Fatal(err)
	}
	return &Subject{Cgroup: name, Name: "c1", Image: "busybox", Pod: "pod", Namespace: "ns", Container: "main",
		Started: began, Detail: r.Detail, Layer: r.Layer, Filesystem: disk, Network: r.Network, Began: began,
		Resources: &model.Resources{CPUQuota: 50000, CPUShares: 100, MemoryLimit: 1 << 30}}
}

func TestARegistryTakesTheMetricsOfARealProcess(t *testing.T) {
	s := running(t)
	metrics := Metrics(s)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{metrics})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range families {
		got[f.GetName()] = true
	}
	for _, want := range []string{"container_cpu_usage_seconds_total", "container_cpu_user_seconds_total",
		"container_cpu_cfs_throttled_periods_total", "container_memory_working_set_bytes", "container_memory_rss",
		"container_memory_cache", "container_memory_mapped_file", "container_memory_failcnt",
		"container_memory_failures_total", "container_oom_events_total", "container_fs_usage_bytes",
		"container_fs_limit_bytes",
		"container_processes", "container_threads", "container_threads_max", "container_file_descriptors",
		"container_sockets",
		"container_ulimits_soft", "container_spec_memory_limit_bytes", "container_spec_cpu_quota",
		"container_spec_memory_swap_limit_bytes",
		"container_start_time_seconds", "container_last_seen"} {
		if !got[want] {
			t.Errorf("%s is missing", want)
		}
	}
	scopes := map[string]bool{} // cAdvisor and containerd have one that is called container
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				scopes[l.GetValue()] = scopes[l.GetValue()] || f.GetName() == "container_memory_failures_total"
			}
		}
	}
	if !scopes["container"] || !scopes["hierarchy"] {
		t.Error("container_memory_failures_total has not the two scopes")
	}
}

// TestThePageNamesWhatIsMissing: a metric that the page calls missing is not there.
func TestThePageNamesWhatIsMissing(t *testing.T) {
	page, err := os.ReadFile("../../../docs/containerd-api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Metrics over the CRI\n")
	section, _, _ = strings.Cut(section, "\n## ")
	missing := regexp.MustCompile("`(container_[a-z0-9_]+)`").FindAllStringSubmatch(section, -1)
	if len(missing) == 0 {
		t.Fatal("the page names none")
	}
	for _, m := range missing {
		if slices.ContainsFunc(Descriptors(), func(d model.MetricDescriptor) bool { return d.Name == m[1] }) {
			t.Errorf("%s is there", m[1])
		}
	}
}

func TestFiguresAreThoseOfTheProcess(t *testing.T) {
	values := map[string]model.Metric{}
	for _, m := range Metrics(running(t)) {
		values[m.Name] = m
	}
	for name, want := range map[string]uint64{
		"container_processes": 1, "container_threads": 1, "container_sockets": 1,
		"container_spec_cpu_period": 100000, "container_spec_cpu_quota": 50000, "container_fs_usage_bytes": 4096,
		"container_oom_events_total": 0,
	} {
		if got := values[name]; got.Name == "" || got.Value != want {
			t.Errorf("%s is %d, want %d", name, got.Value, want)
		}
	}
	if n := values["container_file_descriptors"].Value; n < 4 { // the three of all, and the socket
		t.Errorf("%d files are open", n)
	}
	if values["container_ulimits_soft"].Value == 0 {
		t.Errorf("open files %v", values["container_ulimits_soft"])
	}
	want := []string{"main", "total", "/", "busybox", "c1", "ns", "pod"}
	got := values["container_cpu_usage_seconds_total"].Labels
	want[2] = got[2] // the cgroup
	if !slices.Equal(got, want) {
		t.Errorf("labels %q, want %q", got, want)
	}
	if at := values["container_memory_rss"].At; !at.IsZero() {
		t.Errorf("a live reading is of %v", at)
	}
}

func TestLabelsAreSortedAndThere(t *testing.T) {
	for _, d := range Descriptors() {
		if !slices.IsSorted(d.Labels) || len(d.Labels) < len(common) || d.Help == "" {
			t.Errorf("%s: %q", d.Name, d.Labels)
		}
	}
	disk := stats.Disk{Device: "/dev/sda", Major: "8", Minor: "0", IOUsage: model.IOUsage{ReadBytes: 7, WriteBytes: 9}}
	old := time.Unix(5, 0)
	s := &Subject{Cgroup: "/a", Pod: "p", Began: time.Unix(9, 0),
		Detail:  &stats.Detail{Cgroup: stats.Cgroup{At: old}, Disks: []stats.Disk{disk}},
		Network: []model.InterfaceUsage{{Name: "eth0", RxPackets: 3}}}
	for _, m := range Metrics(s) {
		switch m.Name {
		case "container_blkio_device_usage_total":
			// container, device, id, image, major, minor, name, namespace, operation, pod
			operation := "Read"
			if m.Value == 9 {
				operation = "Write"
			}
			if !slices.Equal(m.Labels, []string{"", "/dev/sda", "/a", "", "8", "0", "", "", operation, "p"}) {
				t.Errorf("labels %q of %d", m.Labels, m.Value)
			}
		case "container_network_receive_packets_total":
			if m.Value != 3 || !m.At.Equal(old) || !slices.Equal(m.Labels, []string{"", "/a", "", "eth0", "", "", "p"}) {
				t.Errorf("%+v", m)
			}
		}
	}
}
