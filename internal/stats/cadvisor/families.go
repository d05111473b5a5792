package cadvisor

import (
	"time"

	"berth/internal/model"
	"berth/internal/stats"
)

// family is a metric with all its labels.
type family struct {
	name, help string
	gauge      bool
	labels     []string // beyond those of every metric, in the order in which values gives them
	values     func(*Subject, adder)
}

// adder takes a value with the values of a family's own labels. at is when it was read; zero: just now.
type adder func(value uint64, at time.Time, labels ...string)

// of is a family of one figure of a cgroup.
func of(name, help string, gauge bool, figure func(*stats.Detail) *uint64) family {
	return family{name: name, help: help, gauge: gauge, values: func(s *Subject, add adder) {
		if s.Detail == nil {
			return
		}
		if v := figure(s.Detail); v != nil {
			add(*v, s.at())
		}
	}}
}

const (
	counter = false
	gauge   = true
	second  = uint64(time.Second)
)

func seconds(ns *uint64) *uint64 {
	if ns == nil {
		return nil
	}
	s := *ns / second
	return &s
}

// families are all metrics. A kubelet learns them when it starts, so that the list does not depend on what runs.
var families = []family{
	{name: "container_last_seen", help: "Last time a container was seen by the exporter", gauge: gauge,
		values: func(s *Subject, add adder) {
			if s.Detail != nil {
				add(uint64(s.Detail.At.Unix()), time.Time{})
			}
		}},
	{name: "container_start_time_seconds", help: "Start time of the container since unix epoch in seconds.", gauge: gauge,
		values: func(s *Subject, add adder) {
			if !s.Started.IsZero() {
				add(uint64(s.Started.Unix()), time.Time{})
			}
		}},
	limit("container_spec_cpu_period", "CPU period of the container.", func(r *model.Resources) int64 {
		if r.CPUPeriod == 0 {
			return 100000 // the kernel's
		}
		return r.CPUPeriod
	}),
	limit("container_spec_cpu_quota", "CPU quota of the container.", func(r *model.Resources) int64 { return r.CPUQuota }),
	limit("container_spec_cpu_shares", "CPU share of the container.",
		func(r *model.Resources) int64 { return r.CPUShares }),
	limit("container_spec_memory_limit_bytes", "Memory limit for the container.",
		func(r *model.Resources) int64 { return r.MemoryLimit }),
	of("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", gauge,
		func(d *stats.Detail) *uint64 { return d.SwapLimit }),

	of("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", counter,
		func(d *stats.Detail) *uint64 { return seconds(d.User) }),
	of("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", counter,
		func(d *stats.Detail) *uint64 { return seconds(d.System) }),
	{name: "container_cpu_usage_seconds_total", help: "Cumulative cpu time consumed in seconds.", labels: []string{"cpu"},
		values: func(s *Subject, add adder) {
			if s.Detail != nil && s.Detail.CPU != nil {
				add(s.Detail.CPU.UsageNanoSeconds/second, s.at(), "total")
			}
		}},
	throttling("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.",
		func(t *stats.Throttling) uint64 { return t.Periods }),
	throttling("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.",
		func(t *stats.Throttling) uint64 { return t.Throttled }),
	throttling("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.",
		func(t *stats.Throttling) uint64 { return t.ThrottledNanoSeconds / second }),
	throttling("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.",
		func(t *stats.Throttling) uint64 { return t.Bursts }),
	throttling("container_cpu_cfs_burst_seconds_total", "Total time duration the container has been bursted.",
		func(t *stats.Throttling) uint64 { return t.BurstNanoSeconds / second }),

	of("container_memory_cache", "Number of bytes of page cache memory.", gauge,
		func(d *stats.Detail) *uint64 { return d.Cache }),
	memory("container_memory_rss", "Size of RSS in bytes.", func(m *model.MemoryUsage) uint64 { return m.RSS }),
	of("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", gauge,
		func(d *stats.Detail) *uint64 { return d.Kernel }),
	of("container_memory_mapped_file", "Size of memory mapped files in bytes.", gauge,
		func(d *stats.Detail) *uint64 { return d.MappedFile }),
	of("container_memory_swap", "Container swap usage in bytes.", gauge, func(d *stats.Detail) *uint64 {
		if d.Swap == nil {
			return nil
		}
		return &d.Swap.Usage
	}),
	of("container_memory_failcnt", "Number of memory usage hits limits", counter,
		func(d *stats.Detail) *uint64 { return d.FailCount }),
	memory("container_memory_usage_bytes",
		"Current memory usage in bytes, including all memory regardless of when it was accessed",
		func(m *model.MemoryUsage) uint64 { return m.Usage }),
	of("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", gauge,
		func(d *stats.Detail) *uint64 { return d.MaxUsage }),
	memory("container_memory_working_set_bytes", "Current working set in bytes.",
		func(m *model.MemoryUsage) uint64 { return m.WorkingSet }),
	of("container_memory_total_active_file_bytes", "Current total active file in bytes.", gauge,
		func(d *stats.Detail) *uint64 { return d.ActiveFile }),
	of("container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", gauge,
		func(d *stats.Detail) *uint64 { return d.InactiveFile }),
	{name: "container_memory_failures_total", help: "Cumulative count of memory allocation failures.",
		labels: []string{"failure_type", "scope"},
		values: func(s *Subject, add adder) {
			if s.Detail == nil || s.Detail.Memory == nil {
				return
			}
			add(s.Detail.Memory.PageFaults, s.at(), "pgfault", "hierarchy")
			add(s.Detail.Memory.MajorPageFaults, s.at(), "pgmajfault", "hierarchy")
			if own := s.Detail.OwnFaults; own != nil {
				add(*own, s.at(), "pgfault", "container")
			}
			if own := s.Detail.OwnMajorFaults; own != nil {
				add(*own, s.at(), "pgmajfault", "container")
			}
		}},
	of("container_oom_events_total", "Count of out of memory events observed for the container", counter,
		func(d *stats.Detail) *uint64 { return d.OOMKills }),

	filesystem("container_fs_inodes_free", "Number of available Inodes", func(s *Subject) uint64 {
		return s.Filesystem.InodesFree
	}),
	filesystem("container_fs_inodes_total", "Number of Inodes", func(s *Subject) uint64 { return s.Filesystem.Inodes }),
	filesystem("container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.",
		func(s *Subject) uint64 { return s.Filesystem.Bytes }),
	filesystem("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.",
		func(s *Subject) uint64 { return s.Layer.UsedBytes }),
	disk("container_fs_reads_bytes_total", "Cumulative count of bytes read",
		func(u *stats.Disk) uint64 { return u.ReadBytes }),
	disk("container_fs_reads_total", "Cumulative count of reads completed",
		func(u *stats.Disk) uint64 { return u.ReadOps }),
	disk("container_fs_writes_bytes_total", "Cumulative count of bytes written",
		func(u *stats.Disk) uint64 { return u.WriteBytes }),
	disk("container_fs_writes_total", "Cumulative count of writes completed",
		func(u *stats.Disk) uint64 { return u.WriteOps }),
	{name: "container_blkio_device_usage_total", help: "Blkio Device bytes usage",
		labels: []string{"device", "major", "minor", "operation"},
		values: func(s *Subject, add adder) {
			if s.Detail == nil {
				return
			}
			for _, d := range s.Detail.Disks {
				add(d.ReadBytes, s.at(), d.Device, d.Major, d.Minor, "Read")
				add(d.WriteBytes, s.at(), d.Device, d.Major, d.Minor, "Write")
			}
		}},

	network("container_network_receive_bytes_total", "Cumulative count of bytes received",
		func(u model.InterfaceUsage) uint64 { return u.RxBytes }),
	network("container_network_receive_packets_total", "Cumulative count of packets received",
		func(u model.InterfaceUsage) uint64 { return u.RxPackets }),
	network("container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving",
		func(u model.InterfaceUsage) uint64 { return u.RxDropped }),
	network("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving",
		func(u model.InterfaceUsage) uint64 { return u.RxErrors }),
	network("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted",
		func(u model.InterfaceUsage) uint64 { return u.TxBytes }),
	network("container_network_transmit_packets_total", "Cumulative count of packets transmitted",
		func(u model.InterfaceUsage) uint64 { return u.TxPackets }),
	network("container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting",
		func(u model.InterfaceUsage) uint64 { return u.TxDropped }),
	network("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting",
		func(u model.InterfaceUsage) uint64 { return u.TxErrors }),

	of("container_processes", "Number of processes running inside the container.", gauge,
		func(d *stats.Detail) *uint64 { return d.Count }),
	of("container_file_descriptors", "Number of open file descriptors for the container.", gauge,
		func(d *stats.Detail) *uint64 { return d.Descriptors }),
	of("container_sockets", "Number of open sockets for the container.", gauge,
		func(d *stats.Detail) *uint64 { return d.Sockets }),
	of("container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", gauge,
		func(d *stats.Detail) *uint64 { return d.ThreadsMax }),
	of("container_threads", "Number of threads running inside the container", gauge,
		func(d *stats.Detail) *uint64 { return d.Processes }),
	{name: "container_ulimits_soft",
		help:  "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
		gauge: gauge, labels: []string{"ulimit"},
		values: func(s *Subject, add adder) {
			if s.Detail != nil && s.Detail.OpenFiles != nil {
				add(*s.Detail.OpenFiles, s.at(), "max_open_files")
			}
		}},

	pressure("container_pressure_cpu_stalled_seconds_total",
		"Total time duration no tasks in the container could make progress due to CPU congestion.", cpuPSI, full),
	pressure("container_pressure_cpu_waiting_seconds_total",
		"Total time duration tasks in the container have waited due to CPU congestion.", cpuPSI, some),
	pressure("container_pressure_memory_stalled_seconds_total",
		"Total time duration no tasks in the container could make progress due to memory congestion.", memoryPSI, full),
	pressure("container_pressure_memory_waiting_seconds_total",
		"Total time duration tasks in the container have waited due to memory congestion.", memoryPSI, some),
	pressure("container_pressure_io_stalled_seconds_total",
		"Total time duration no tasks in the container could make progress due to IO congestion.", ioPSI, full),
	pressure("container_pressure_io_waiting_seconds_total",
		"Total time duration tasks in the container have waited due to IO congestion.", ioPSI, some),
}

// limit is a limit as the client has set it; where it has set none, or "unlimited", there is no value.
func limit(name, help string, value func(*model.Resources) int64) family {
	return family{name: name, help: help, gauge: gauge, values: func(s *Subject, add adder) {
		if s.Resources == nil {
			return
		}
		if v := value(s.Resources); v > 0 {
			add(uint64(v), time.Time{})
		}
	}}
}

// throttling is there for who has a limit of CPU time only, as cAdvisor has it.
func throttling(name, help string, value func(*stats.Throttling) uint64) family {
	return family{name: name, help: help, values: func(s *Subject, add adder) {
		if s.Detail != nil && s.Detail.Throttling != nil && s.Resources != nil && s.Resources.CPUQuota > 0 {
			add(value(s.Detail.Throttling), s.at())
		}
	}}
}

func memory(name, help string, value func(*model.MemoryUsage) uint64) family {
	return family{name: name, help: help, gauge: gauge, values: func(s *Subject, add adder) {
		if s.Detail != nil && s.Detail.Memory != nil {
			add(value(s.Detail.Memory), s.at())
		}
	}}
}

func filesystem(name, help string, value func(*Subject) uint64) family {
	return family{name: name, help: help, gauge: gauge, labels: []string{"device"}, values: func(s *Subject, add adder) {
		if s.Layer != nil && s.Filesystem != nil {
			add(value(s), stats.Stale(s.Layer.At, s.Began), s.Filesystem.Device)
		}
	}}
}

func disk(name, help string, value func(*stats.Disk) uint64) family {
	return family{name: name, help: help, labels: []string{"device"}, values: func(s *Subject, add adder) {
		if s.Detail == nil {
			return
		}
		for i := range s.Detail.Disks {
			d := &s.Detail.Disks[i]
			device := d.Device
			if device == "" { // gone; two of those would be one and the same series without their numbers
				device = d.Major + ":" + d.Minor
			}
			add(value(d), s.at(), device)
		}
	}}
}

func network(name, help string, value func(model.InterfaceUsage) uint64) family {
	return family{name: name, help: help, labels: []string{"interface"}, values: func(s *Subject, add adder) {
		for _, u := range s.Network {
			add(value(u), s.at(), u.Name)
		}
	}}
}

func cpuPSI(d *stats.Detail) *model.PSI {
	if d.CPU == nil {
		return nil
	}
	return d.CPU.PSI
}

func memoryPSI(d *stats.Detail) *model.PSI {
	if d.Memory == nil {
		return nil
	}
	return d.Memory.PSI
}

func ioPSI(d *stats.Detail) *model.PSI {
	if d.IO == nil {
		return nil
	}
	return d.IO.PSI
}

func full(p *model.PSI) uint64 { return p.Full.Total }
func some(p *model.PSI) uint64 { return p.Some.Total }

func pressure(name, help string, psi func(*stats.Detail) *model.PSI, total func(*model.PSI) uint64) family {
	return family{name: name, help: help, values: func(s *Subject, add adder) {
		if s.Detail == nil {
			return
		}
		if p := psi(s.Detail); p != nil {
			add(total(p)/second, s.at())
		}
	}}
}
