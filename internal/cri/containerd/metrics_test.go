package containerd

import (
	"math"
	"slices"
	"testing"

	statsv1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	statsv2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/protobuf/proto"

	"berth/internal/model"
)

// TestMetricsAreTheMessagesOfTheCgroupVersion, under the name that containerd's clients look for, with every part that
// they read without looking whether it is there.
func TestMetricsAreTheMessagesOfTheCgroupVersion(t *testing.T) {
	one, two := model.PSIData{Total: 5000, Avg10: 1.5}, model.PSIData{Total: 7000}
	for _, tc := range []struct {
		name    string
		figures *model.CgroupFigures
		into    proto.Message
		want    proto.Message
	}{
		{
			"io.containerd.cgroups.v1.Metrics",
			&model.CgroupFigures{At: began, PerCPU: []uint64{3, 4}, PageSizes: []string{"2MB"}, Numbers: map[string]uint64{
				"pids.current": 2, "pids.max": math.MaxUint64, "cpuacct.usage": 7, "cpuacct.usage_sys": 3,
				"cpuacct.usage_user": 4, "cpu.stat/nr_throttled": 1, "memory.usage_in_bytes": 11,
				"memory.memsw.limit_in_bytes": 12, "memory.kmem.usage_in_bytes": 13, "memory.kmem.tcp.failcnt": 14,
				"memory.stat/total_rss": 15, "memory.oom_control/oom_kill": 16, "hugetlb.2MB.usage_in_bytes": 17,
			}, Disks: []model.DiskFigure{
				{File: "blkio.throttle.io_serviced_recursive", Major: 8, Minor: 1, Device: "/dev/sda1", Key: "Read", Value: 9},
				{File: "blkio.throttle.io_service_bytes_recursive", Major: 8, Minor: 1, Key: "Write", Value: 10},
			}},
			&statsv1.Metrics{},
			&statsv1.Metrics{
				Pids: &statsv1.PidsStat{Current: 2},
				CPU: &statsv1.CPUStat{
					Usage:      &statsv1.CPUUsage{Total: 7, Kernel: 3, User: 4, PerCPU: []uint64{3, 4}},
					Throttling: &statsv1.Throttle{ThrottledPeriods: 1},
				},
				Memory: &statsv1.MemoryStat{
					TotalRSS: 15, Usage: &statsv1.MemoryEntry{Usage: 11}, Swap: &statsv1.MemoryEntry{Limit: 12},
					Kernel: &statsv1.MemoryEntry{Usage: 13}, KernelTCP: &statsv1.MemoryEntry{Failcnt: 14},
				},
				MemoryOomControl: &statsv1.MemoryOomControl{OomKill: 16},
				Hugetlb:          []*statsv1.HugetlbStat{{Pagesize: "2MB", Usage: 17}},
				Blkio: &statsv1.BlkIOStat{
					IoServicedRecursive:     []*statsv1.BlkIOEntry{{Op: "Read", Device: "/dev/sda1", Major: 8, Minor: 1, Value: 9}},
					IoServiceBytesRecursive: []*statsv1.BlkIOEntry{{Op: "Write", Major: 8, Minor: 1, Value: 10}},
				},
			},
		}, {
			"io.containerd.cgroups.v2.Metrics",
			&model.CgroupFigures{
				At: began, Unified: true, PageSizes: []string{"1GB"}, CPUPressure: &model.PSI{Some: one, Full: two},
				Numbers: map[string]uint64{
					"pids.current": 2, "pids.max": math.MaxUint64, "cpu.stat/usage_usec": 7, "memory.current": 8,
					"memory.max": math.MaxUint64, "memory.stat/anon": 9, "memory.events/oom_kill": 10,
					"hugetlb.1GB.events/max": 11,
				},
				Disks: []model.DiskFigure{
					{File: "io.stat", Major: 8, Key: "rbytes", Value: 1}, {File: "io.stat", Major: 8, Key: "wios", Value: 2},
					{File: "io.stat", Major: 9, Key: "rios", Value: 3}, {File: "io.stat", Major: 9, Key: "dios", Value: 4},
				},
			},
			&statsv2.Metrics{},
			&statsv2.Metrics{
				Pids: &statsv2.PidsStat{Current: 2, Limit: math.MaxUint64},
				CPU: &statsv2.CPUStat{UsageUsec: 7, PSI: &statsv2.PSIStats{
					Some: &statsv2.PSIData{Total: 5, Avg10: 1.5}, Full: &statsv2.PSIData{Total: 7},
				}},
				Memory:       &statsv2.MemoryStat{Usage: 8, UsageLimit: math.MaxUint64, Anon: 9},
				MemoryEvents: &statsv2.MemoryEvents{OomKill: 10},
				Hugetlb:      []*statsv2.HugeTlbStat{{Pagesize: "1GB", Failcnt: 11}},
				Io:           &statsv2.IOStat{Usage: []*statsv2.IOEntry{{Major: 8, Rbytes: 1, Wios: 2}, {Major: 9, Rios: 3}}},
			},
		},
	} {
		f := newFake()
		f.figures = tc.figures
		_, conn, ctx := serve(t, f)
		got, err := tasks.NewTasksClient(conn).Metrics(ctx, &tasks.MetricsRequest{Filters: []string{"id==main"}})
		if err != nil || len(got.Metrics) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		m := got.Metrics[0]
		if m.Data.TypeUrl != tc.name || m.ID != "main" || !m.Timestamp.AsTime().Equal(began) {
			t.Fatalf("metrics %s of %s at %v", m.Data.TypeUrl, m.ID, m.Timestamp.AsTime())
		}
		if err := proto.Unmarshal(m.Data.Value, tc.into); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(tc.into, tc.want) {
			t.Errorf("%v\nnot %v", tc.into, tc.want)
		}
	}
}

// TestMetricsAreOfTasksThatRun, as far as filters select them.
func TestMetricsAreOfTasksThatRun(t *testing.T) {
	f := newFake()
	f.figures = &model.CgroupFigures{}
	_, conn, ctx := serve(t, f)
	client := tasks.NewTasksClient(conn)
	for filter, want := range map[string][]string{
		"": {"main"}, "id==main": {"main"}, "id==ended": nil, "id==waits": nil, "id==sandbox": nil, "id==none": nil,
		"namespace==k8s.io": {"main"}, "namespace==moby": nil,
	} {
		req := &tasks.MetricsRequest{}
		if filter != "" {
			req.Filters = []string{filter}
		}
		got, err := client.Metrics(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range got.Metrics {
			ids = append(ids, m.ID)
		}
		if !slices.Equal(ids, want) {
			t.Errorf("%s: %v, not %v", filter, ids, want)
		}
	}
}
