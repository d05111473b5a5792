package containerd

import (
	"context"
	"fmt"
	"math"

	statsv1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	statsv2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	api "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/filters"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"berth/internal/model"
)

// Metrics are what the cgroups of the tasks that filters select say, in the message of the node's cgroup version. A
// task that has ended has none, and neither has a sandbox without a cgroup.
func (s *taskService) Metrics(ctx context.Context, req *api.MetricsRequest) (*api.MetricsResponse, error) {
	resp := &api.MetricsResponse{}
	in, err := inNamespace(ctx)
	if err != nil || !in {
		return resp, err
	}
	filter, err := filters.ParseAll(req.Filters...)
	if err != nil {
		return nil, err
	}
	list, err := s.List(ctx, &api.ListTasksRequest{})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, task := range list.Tasks {
		if task.Pid != 0 && filter.Match(fields{"id": task.ID, "namespace": namespace}) {
			ids = append(ids, task.ID)
		}
	}
	for i, figures := range s.api.Runtime.CgroupFigures(ctx, ids) {
		if figures == nil {
			continue
		}
		data, err := cgroupMetrics(figures)
		if err != nil {
			return nil, fmt.Errorf("metrics of task %s: %w", ids[i], err)
		}
		resp.Metrics = append(resp.Metrics, &types.Metric{ID: ids[i], Timestamp: timestamppb.New(figures.At), Data: data})
	}
	return resp, nil
}

// cgroupMetrics is the message of a cgroup, named as containerd's clients expect it.
func cgroupMetrics(f *model.CgroupFigures) (*anypb.Any, error) {
	var message proto.Message
	if f.Unified {
		message = metricsV2(f)
	} else {
		message = metricsV1(f)
	}
	data, err := proto.Marshal(message)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: string(message.ProtoReflect().Descriptor().FullName()), Value: data}, nil
}

// metricsV1 has every part that clients read without looking whether it is there.
func metricsV1(f *model.CgroupFigures) *statsv1.Metrics {
	n := f.Numbers
	out := &statsv1.Metrics{
		Pids: &statsv1.PidsStat{Current: n["pids.current"], Limit: n["pids.max"]},
		CPU: &statsv1.CPUStat{
			Usage: &statsv1.CPUUsage{
				Total: n["cpuacct.usage"], Kernel: n["cpuacct.usage_sys"], User: n["cpuacct.usage_user"], PerCPU: f.PerCPU,
			},
			Throttling: &statsv1.Throttle{
				Periods: n["cpu.stat/nr_periods"], ThrottledPeriods: n["cpu.stat/nr_throttled"],
				ThrottledTime: n["cpu.stat/throttled_time"],
			},
		},
		Memory: memoryV1(n),
		MemoryOomControl: &statsv1.MemoryOomControl{
			OomKillDisable: n["memory.oom_control/oom_kill_disable"], UnderOom: n["memory.oom_control/under_oom"],
			OomKill: n["memory.oom_control/oom_kill"],
		},
		Blkio: &statsv1.BlkIOStat{},
	}
	if out.Pids.Limit == math.MaxUint64 {
		out.Pids.Limit = 0 // containerd's word for "max" in this message
	}
	for _, d := range f.Disks {
		entry := &statsv1.BlkIOEntry{Op: d.Key, Device: d.Device, Major: d.Major, Minor: d.Minor, Value: d.Value}
		switch d.File {
		case "blkio.throttle.io_service_bytes_recursive":
			out.Blkio.IoServiceBytesRecursive = append(out.Blkio.IoServiceBytesRecursive, entry)
		case "blkio.throttle.io_serviced_recursive":
			out.Blkio.IoServicedRecursive = append(out.Blkio.IoServicedRecursive, entry)
		}
	}
	for _, size := range f.PageSizes {
		file := "hugetlb." + size
		out.Hugetlb = append(out.Hugetlb, &statsv1.HugetlbStat{
			Pagesize: size, Usage: n[file+".usage_in_bytes"], Max: n[file+".max_usage_in_bytes"], Failcnt: n[file+".failcnt"],
		})
	}
	return out
}

func memoryV1(n map[string]uint64) *statsv1.MemoryStat {
	stat := func(key string) uint64 { return n["memory.stat/"+key] }
	entry := func(prefix string) *statsv1.MemoryEntry {
		return &statsv1.MemoryEntry{
			Limit: n[prefix+".limit_in_bytes"], Usage: n[prefix+".usage_in_bytes"], Max: n[prefix+".max_usage_in_bytes"],
			Failcnt: n[prefix+".failcnt"],
		}
	}
	return &statsv1.MemoryStat{
		Cache: stat("cache"), RSS: stat("rss"), RSSHuge: stat("rss_huge"), MappedFile: stat("mapped_file"),
		Dirty: stat("dirty"), Writeback: stat("writeback"), PgPgIn: stat("pgpgin"), PgPgOut: stat("pgpgout"),
		PgFault: stat("pgfault"), PgMajFault: stat("pgmajfault"), InactiveAnon: stat("inactive_anon"),
		ActiveAnon: stat("active_anon"), InactiveFile: stat("inactive_file"), ActiveFile: stat("active_file"),
		Unevictable: stat("unevictable"), HierarchicalMemoryLimit: stat("hierarchical_memory_limit"),
		HierarchicalSwapLimit: stat("hierarchical_memsw_limit"), TotalCache: stat("total_cache"),
		TotalRSS: stat("total_rss"), TotalRSSHuge: stat("total_rss_huge"), TotalMappedFile: stat("total_mapped_file"),
		TotalDirty: stat("total_dirty"), TotalWriteback: stat("total_writeback"), TotalPgPgIn: stat("total_pgpgin"),
		TotalPgPgOut: stat("total_pgpgout"), TotalPgFault: stat("total_pgfault"), TotalPgMajFault: stat("total_pgmajfault"),
		TotalInactiveAnon: stat("total_inactive_anon"), TotalActiveAnon: stat("total_active_anon"),
		TotalInactiveFile: stat("total_inactive_file"), TotalActiveFile: stat("total_active_file"),
		TotalUnevictable: stat("total_unevictable"),
		Usage:            entry("memory"), Swap: entry("memory.memsw"), Kernel: entry("memory.kmem"),
		KernelTCP: entry("memory.kmem.tcp"),
	}
}

// metricsV2 has every part that clients read without looking whether it is there.
func metricsV2(f *model.CgroupFigures) *statsv2.Metrics {
	n := f.Numbers
	out := &statsv2.Metrics{
		Pids: &statsv2.PidsStat{Current: n["pids.current"], Limit: n["pids.max"]},
		CPU: &statsv2.CPUStat{
			UsageUsec: n["cpu.stat/usage_usec"], UserUsec: n["cpu.stat/user_usec"], SystemUsec: n["cpu.stat/system_usec"],
			NrPeriods: n["cpu.stat/nr_periods"], NrThrottled: n["cpu.stat/nr_throttled"],
			ThrottledUsec: n["cpu.stat/throttled_usec"], NrBursts: n["cpu.stat/nr_bursts"],
			BurstUsec: n["cpu.stat/burst_usec"], PSI: pressureV2(f.CPUPressure),
		},
		Memory: memoryV2(n),
		MemoryEvents: &statsv2.MemoryEvents{
			Low: n["memory.events/low"], High: n["memory.events/high"], Max: n["memory.events/max"],
			Oom: n["memory.events/oom"], OomKill: n["memory.events/oom_kill"],
			OomGroupKill: n["memory.events/oom_group_kill"],
		},
		Io: &statsv2.IOStat{PSI: pressureV2(f.IOPressure)},
	}
	out.Memory.PSI = pressureV2(f.MemoryPressure)
	for _, d := range f.Disks {
		last := len(out.Io.Usage) - 1
		if last < 0 || out.Io.Usage[last].Major != d.Major || out.Io.Usage[last].Minor != d.Minor {
			out.Io.Usage = append(out.Io.Usage, &statsv2.IOEntry{Major: d.Major, Minor: d.Minor})
			last++
		}
		switch entry := out.Io.Usage[last]; d.Key {
		case "rbytes":
			entry.Rbytes = d.Value
		case "wbytes":
			entry.Wbytes = d.Value
		case "rios":
			entry.Rios = d.Value
		case "wios":
			entry.Wios = d.Value
		}
	}
	for _, size := range f.PageSizes {
		file := "hugetlb." + size
		out.Hugetlb = append(out.Hugetlb, &statsv2.HugeTlbStat{
			Pagesize: size, Current: n[file+".current"], Max: n[file+".max"], Failcnt: n[file+".events/max"],
		})
	}
	return out
}

func memoryV2(n map[string]uint64) *statsv2.MemoryStat {
	stat := func(key string) uint64 { return n["memory.stat/"+key] }
	return &statsv2.MemoryStat{
		Anon: stat("anon"), File: stat("file"), KernelStack: stat("kernel_stack"), Slab: stat("slab"), Sock: stat("sock"),
		Shmem: stat("shmem"), FileMapped: stat("file_mapped"), FileDirty: stat("file_dirty"),
		FileWriteback: stat("file_writeback"), AnonThp: stat("anon_thp"), InactiveAnon: stat("inactive_anon"),
		ActiveAnon: stat("active_anon"), InactiveFile: stat("inactive_file"), ActiveFile: stat("active_file"),
		Unevictable: stat("unevictable"), SlabReclaimable: stat("slab_reclaimable"),
		SlabUnreclaimable: stat("slab_unreclaimable"), Pgfault: stat("pgfault"), Pgmajfault: stat("pgmajfault"),
		WorkingsetRefault: stat("workingset_refault"), WorkingsetActivate: stat("workingset_activate"),
		WorkingsetNodereclaim: stat("workingset_nodereclaim"), Pgrefill: stat("pgrefill"), Pgscan: stat("pgscan"),
		Pgsteal: stat("pgsteal"), Pgactivate: stat("pgactivate"), Pgdeactivate: stat("pgdeactivate"),
		Pglazyfree: stat("pglazyfree"), Pglazyfreed: stat("pglazyfreed"), ThpFaultAlloc: stat("thp_fault_alloc"),
		ThpCollapseAlloc: stat("thp_collapse_alloc"), Usage: n["memory.current"], UsageLimit: n["memory.max"],
		MaxUsage: n["memory.peak"], SwapUsage: n["memory.swap.current"], SwapLimit: n["memory.swap.max"],
		SwapMaxUsage: n["memory.swap.peak"],
	}
}

func pressureV2(p *model.PSI) *statsv2.PSIStats {
	if p == nil {
		return nil
	}
	data := func(d model.PSIData) *statsv2.PSIData {
		return &statsv2.PSIData{Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300, Total: d.Total / 1000} // ns in the model
	}
	return &statsv2.PSIStats{Some: data(p.Some), Full: data(p.Full)}
}
