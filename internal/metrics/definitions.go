package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Type is a metric's type, as Prometheus names it.
type Type string

// The types.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Definition is one metric.
type Definition struct {
	Name   string
	Type   Type
	Help   string // a sentence
	Labels []string
	// Containerd and CRIO are the metrics of theirs that say the same or nearly the same; empty: there is none.
	Containerd, CRIO string

	buckets []float64 // of a histogram
}

var (
	// quick is for what takes microseconds to seconds: 250 µs to 16 s.
	quick = prometheus.ExponentialBuckets(0.00025, 4, 9)
	// slow is for what a network or a program decides: 10 ms to 22 min.
	slow = prometheus.ExponentialBuckets(0.01, 2.5, 14)
)

var all []*Definition

// define adds a metric to the list of all.
func define(d Definition) *Definition {
	all = append(all, &d)
	return &d
}

// All are the metrics of Berth's own, in the order of the page.
func All() []*Definition { return slices.Clone(all) }

// The metrics. See docs/metrics.md.
var (
	BuildInfo = define(Definition{
		Name: "berth_build_info", Type: Gauge, Labels: []string{"version", "go_version"},
		Help:       "1, with the version of berthd and the version of Go that built it.",
		Containerd: "containerd_build_info_total",
	})

	CallSeconds = define(Definition{
		Name: "berth_cri_call_duration_seconds", Type: Histogram, Labels: []string{"service", "method"},
		buckets:    quick,
		Help:       "How long CRI calls took.",
		Containerd: "grpc_server_handling_seconds",
		CRIO:       "container_runtime_crio_operations_latency_seconds",
	})
	Calls = define(Definition{
		Name: "berth_cri_calls_total", Type: Counter, Labels: []string{"service", "method", "code"},
		Help:       "CRI calls that were answered, by gRPC code.",
		Containerd: "grpc_server_handled_total",
		CRIO:       "container_runtime_crio_operations_total, container_runtime_crio_operations_errors_total",
	})

	PullSeconds = define(Definition{
		Name: "berth_image_pull_duration_seconds", Type: Histogram, Labels: []string{"registry"},
		buckets:    slow,
		Help:       "How long pulls took that succeeded, by the registry in the image's name.",
		Containerd: "containerd_cri_sandboxed_image_pulls_total, containerd_cri_sandboxed_image_pulling_throughput",
		CRIO:       "container_runtime_crio_image_pulls_success_total",
	})
	PullErrors = define(Definition{
		Name: "berth_image_pull_errors_total", Type: Counter, Labels: []string{"registry", "reason"},
		Help:       "Pulls that failed, by the registry in the image's name and the reason.",
		Containerd: "containerd_cri_sandboxed_image_pulls_total",
		CRIO:       "container_runtime_crio_image_pulls_failure_total",
	})
	PullBytes = define(Definition{
		Name: "berth_image_pull_bytes_total", Type: Counter, Labels: []string{"registry"},
		Help: "Bytes of packed layers that came from registries, those of pulls that failed included, by the " +
			"registry in the image's name.",
		CRIO: "container_runtime_crio_image_pulls_bytes_total",
	})
	PullsRunning = define(Definition{
		Name: "berth_image_pulls_in_progress", Type: Gauge,
		Help:       "Pulls that are under way.",
		Containerd: "containerd_cri_sandboxed_in_progress_image_pulls_total",
	})
	PullLayers = define(Definition{
		Name: "berth_image_pull_layers_total", Type: Counter, Labels: []string{"source"},
		Help: "Layers that pulls needed: from the registry, from the store, or from another pull that was " +
			"loading them (shared).",
		CRIO: "container_runtime_crio_image_layer_reuse_total",
	})
	Images = define(Definition{
		Name: "berth_images", Type: Gauge,
		Help: "Images in the store.",
	})
	Layers = define(Definition{
		Name: "berth_image_layers", Type: Gauge, Labels: []string{"shared"},
		Help: "Layers in the store, by whether more than one image has them (true) or not (false).",
	})
	StoreBytes = define(Definition{
		Name: "berth_image_store_bytes", Type: Gauge,
		Help: "Size of the image store on disk, as ImageFsInfo has it.",
	})
	StoreInodes = define(Definition{
		Name: "berth_image_store_inodes", Type: Gauge,
		Help: "Inodes of the image store, as ImageFsInfo has them.",
	})

	Pods = define(Definition{
		Name: "berth_pods", Type: Gauge, Labels: []string{"state"},
		Help: "Pods, by state.",
	})
	Containers = define(Definition{
		Name: "berth_containers", Type: Gauge, Labels: []string{"state"},
		Help: "Containers, by state.",
	})
	StepSecs = define(Definition{
		Name: "berth_start_step_duration_seconds", Type: Histogram, Labels: []string{"call", "step"},
		buckets: quick,
		Help:    "How long the steps of starts took that succeeded: the figures of berth timeline, as histograms.",
		Containerd: "containerd_cri_sandbox_runtime_create_seconds, containerd_cri_sandbox_create_network_seconds, " +
			"containerd_cri_container_create_seconds, containerd_cri_container_start_seconds",
	})
	Exits = define(Definition{
		Name: "berth_container_exits_total", Type: Counter, Labels: []string{"reason"},
		Help: "Containers that ended, by the reason in their status.",
	})
	OOMKills = define(Definition{
		Name: "berth_container_oom_kills_total", Type: Counter,
		Help: "Containers that ended because the kernel killed a process of theirs for want of memory.",
		CRIO: "container_runtime_crio_containers_oom_total, container_runtime_crio_containers_oom_count_total",
	})

	ExecSeconds = define(Definition{
		Name: "berth_exec_duration_seconds", Type: Histogram, Labels: []string{"kind"},
		buckets: quick,
		Help: "How long execs took, from the call to the end: of ExecSync (sync), or over the streaming server " +
			"(stream).",
	})
	ExecErrors = define(Definition{
		Name: "berth_exec_errors_total", Type: Counter, Labels: []string{"kind", "reason"},
		Help: "Execs that gave no exit code, by reason. A command that ends with a code other than 0 is none.",
	})
	StreamsOpen = define(Definition{
		Name: "berth_streams_open", Type: Gauge, Labels: []string{"kind"},
		Help: "Connections to the streaming server that are open: exec, attach, portforward.",
	})
	Streams = define(Definition{
		Name: "berth_streams_total", Type: Counter, Labels: []string{"kind"},
		Help: "Connections to the streaming server that were opened.",
	})

	CNISeconds = define(Definition{
		Name: "berth_cni_call_duration_seconds", Type: Histogram, Labels: []string{"plugin", "command"},
		buckets: slow,
		Help:    "How long calls of CNI plugins took, failed ones included.",
		Containerd: "containerd_cri_network_plugin_operations_duration_seconds_seconds, " +
			"containerd_cri_network_plugin_operations_total_total",
	})
	CNIErrors = define(Definition{
		Name: "berth_cni_call_errors_total", Type: Counter, Labels: []string{"plugin", "command"},
		Help:       "Calls of CNI plugins that failed.",
		Containerd: "containerd_cri_network_plugin_operations_errors_total_total",
	})

	NRIPlugins = define(Definition{
		Name: "berth_nri_plugins", Type: Gauge,
		Help:       "NRI plugins that are connected, the built-in validator included.",
		Containerd: "containerd_nri_active_plugins_total",
	})
	NRISeconds = define(Definition{
		Name: "berth_nri_call_duration_seconds", Type: Histogram, Labels: []string{"plugin", "call"},
		buckets:    quick,
		Help:       "How long calls of NRI plugins took, failed ones included.",
		Containerd: "containerd_nri_plugin_latency_seconds, containerd_nri_plugin_invocations_total",
	})
	NRIErrors = define(Definition{
		Name: "berth_nri_call_errors_total", Type: Counter, Labels: []string{"plugin", "call"},
		Help:       "Calls of NRI plugins that failed: the plugin refused, did not answer in time, or had gone.",
		Containerd: "containerd_nri_plugin_invocations_total",
	})

	VerifierSeconds = define(Definition{
		Name: "berth_image_verifier_duration_seconds", Type: Histogram, Labels: []string{"verifier", "result"},
		buckets: slow,
		Help: "How long image verifiers took, by what they said of an image: accepted or rejected; failed if they gave " +
			"no answer.",
	})

	RecordSeconds = define(Definition{
		Name: "berth_record_write_duration_seconds", Type: Histogram, Labels: []string{"kind"},
		buckets: quick,
		Help:    "How long it took to write records of pods and containers.",
	})
	RecordErrors = define(Definition{
		Name: "berth_record_write_errors_total", Type: Counter, Labels: []string{"kind"},
		Help: "Records of pods and containers that could not be written.",
	})
	CgroupAge = define(Definition{
		Name: "berth_stats_cgroup_age_seconds", Type: Gauge,
		Help: "Age of the oldest reading of a cgroup that the statistics have. Cgroups are read when somebody " +
			"asks for statistics.",
	})
	DiskAge = define(Definition{
		Name: "berth_stats_disk_age_seconds", Type: Gauge,
		Help: "Age of the oldest reading of a writable layer's size that the statistics have.",
	})

	KeeperUp = define(Definition{
		Name: "berth_keeper_up", Type: Gauge,
		Help: "Whether the keeper answers berthd: 1, or 0. The other metrics of the keeper are missing while " +
			"it does not.",
	})
	KeeperStart = define(Definition{
		Name: "berth_keeper_start_time_seconds", Type: Gauge,
		Help: "When the keeper was started, in seconds since 1970. An upgrade in place does not change it.",
	})
	KeeperUpgrades = define(Definition{
		Name: "berth_keeper_upgrades_total", Type: Counter,
		Help: "Upgrades in place since the keeper was started.",
	})
	KeeperContainers = define(Definition{
		Name: "berth_keeper_containers", Type: Gauge,
		Help: "Containers and inits of pods that the keeper has.",
	})
	KeeperExecs = define(Definition{
		Name: "berth_keeper_execs", Type: Gauge,
		Help: "Execs that the keeper has: those that run, and those whose end nobody has read.",
	})
	KeeperHolders = define(Definition{
		Name: "berth_keeper_escrow_holders", Type: Gauge,
		Help: "Processes that hold the descriptors of containers beside the keeper. With none, a keeper that " +
			"is killed loses output and exit codes.",
	})
	KeeperQueue = define(Definition{
		Name: "berth_keeper_queue", Type: Gauge,
		Help: "Packets that wait for holders of the escrow to take them.",
	})
	KeeperBacklog = define(Definition{
		Name: "berth_keeper_attach_backlog_bytes", Type: Gauge,
		Help: "Bytes that are kept for attached clients which do not take them.",
	})
	LogBytes = define(Definition{
		Name: "berth_log_bytes_total", Type: Counter,
		Help: "Bytes of records written to logs of containers, since the keeper's program was started or " +
			"upgraded.",
		Containerd: "containerd_cri_output_bytes_total",
	})
	LogSplit = define(Definition{
		Name: "berth_log_lines_cut_total", Type: Counter,
		Help: "Records that had to be ended in the middle of a line, since 16 KiB is the most that one may " +
			"have.",
		Containerd: "containerd_cri_split_entries_total",
	})
	LogRotations = define(Definition{
		Name: "berth_log_rotations_total", Type: Counter,
		Help: "Files of logs that the keeper has rotated since they were full (log.max_size).",
	})
	LogRemoved = define(Definition{
		Name: "berth_log_removed_bytes_total", Type: Counter,
		Help: "Bytes of the oldest files of logs that the keeper has removed (log.max_files).",
	})
	LogLimitedLines = define(Definition{
		Name: "berth_log_limited_lines_total", Type: Counter,
		Help: "Lines that were left out of logs, since containers wrote more than their rate (log.over = \"drop\").",
	})
	LogLimitedBytes = define(Definition{
		Name: "berth_log_limited_bytes_total", Type: Counter,
		Help: "Bytes of the records of these lines.",
	})
	LogHeld = define(Definition{
		Name: "berth_log_held_seconds_total", Type: Counter,
		Help: "How long streams of containers with output have waited for their rate (log.over = \"wait\").",
	})
	LogDropped = define(Definition{
		Name: "berth_log_dropped_bytes_total", Type: Counter,
		Help: "Bytes of records that could not be written to logs, with a full disk say, and are lost.",
	})

	Devices = define(Definition{
		Name: "berth_devices", Type: Gauge, Labels: []string{"resource"},
		Help: "Devices that the plugin of a resource offers.",
	})
	DevicesAllocated = define(Definition{
		Name: "berth_devices_allocated", Type: Gauge, Labels: []string{"resource"},
		Help: "Devices that containers hold.",
	})
	DevicesUnhealthy = define(Definition{
		Name: "berth_devices_unhealthy", Type: Gauge, Labels: []string{"resource"},
		Help: "Devices that are unhealthy, or whose plugin is away.",
	})
	DeviceSeconds = define(Definition{
		Name: "berth_device_plugin_call_duration_seconds", Type: Histogram, Labels: []string{"resource", "call"},
		buckets: prometheus.ExponentialBuckets(0.00025, 4, 10), // 250 µs to 65 s
		Help:    "How long calls of device plugins took.",
	})
	DeviceCalls = define(Definition{
		Name: "berth_device_plugin_calls_total", Type: Counter, Labels: []string{"resource", "call", "code"},
		Help: "Calls of device plugins, by gRPC code.",
	})
)

// Desc is a definition as collectors of their own have it.
func (d *Definition) Desc() *prometheus.Desc {
	return prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
}

// CounterVec makes the metric.
func (d *Definition) CounterVec() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.Name, Help: d.Help}, d.Labels)
}

// GaugeVec makes the metric.
func (d *Definition) GaugeVec() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.Name, Help: d.Help}, d.Labels)
}

// HistogramVec makes the metric.
func (d *Definition) HistogramVec() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.Name, Help: d.Help, Buckets: d.buckets}, d.Labels)
}
