// Package usage reads what pods and containers use, and of how much.
package usage

import (
	"cmp"
	"context"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

// Row is the usage of a container, or of a pod as a whole. The runtime does not know the figures that are nil.
type Row struct {
	Pod       string   `json:"pod"` // namespace/name
	Container string   `json:"container,omitempty"`
	ID        string   `json:"id"`
	CPU       *float64 `json:"cpu,omitempty"`    // CPUs, over the last moments
	Memory    *uint64  `json:"memory,omitempty"` // bytes of working set
	RSS       *uint64  `json:"rss,omitempty"`
	Processes *uint64  `json:"processes,omitempty"`
	Disk      *uint64  `json:"disk,omitempty"` // bytes that the container has written to its root file system
	Received  *uint64  `json:"received,omitempty"`
	Sent      *uint64  `json:"sent,omitempty"`

	// MemoryLimit and CPULimit are those of a container, and of a pod the sums where all its containers have one.
	MemoryLimit *uint64  `json:"memoryLimit,omitempty"`
	CPULimit    *float64 `json:"cpuLimit,omitempty"` // CPUs

	Display string `json:"-"` // as a table names it
}

// Read reads what pods use: a row for the pod, and below it one for each container. wanted are IDs of pods; empty: all.
// The meter is that of the reading before, or a new one.
func Read(ctx context.Context, conn *connection.Connection, wanted map[string]bool,
	meter *Meter) ([]Row, error) {
	list, err := conn.Runtime.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil, err
	}
	pods, err := lookup.Pods(ctx, conn.Runtime)
	if err != nil {
		return nil, err
	}
	byID := map[string]*cri.PodSandboxStats{}
	for _, stats := range list.GetStats() {
		byID[stats.GetAttributes().GetId()] = stats
	}
	meter.turn()
	var rows []Row
	for _, pod := range pods { // in the order of all lists
		stats := byID[pod.Id]
		if stats == nil || len(wanted) > 0 && !wanted[pod.Id] {
			continue
		}
		linux := stats.GetLinux()
		network := linux.GetNetwork().GetDefaultInterface()
		at := len(rows)
		rows = append(rows, Row{
			Pod: lookup.PodName(pod), ID: pod.Id, Display: lookup.ShortPodName(pod),
			CPU: meter.read(pod.Id, linux.GetCpu()), Memory: value(linux.GetMemory().GetWorkingSetBytes()),
			RSS: value(linux.GetMemory().GetRssBytes()), Processes: value(linux.GetProcess().GetProcessCount()),
			Received: value(network.GetRxBytes()), Sent: value(network.GetTxBytes()),
		})
		for _, c := range linux.GetContainers() {
			name := c.GetAttributes().GetMetadata().GetName()
			rows = append(rows, Row{
				Pod: lookup.PodName(pod), Container: name, ID: c.GetAttributes().GetId(), Display: "  " + name,
				CPU: meter.read(c.GetAttributes().GetId(), c.GetCpu()), Memory: value(c.GetMemory().GetWorkingSetBytes()),
				RSS: value(c.GetMemory().GetRssBytes()), Disk: value(c.GetWritableLayer().GetUsedBytes()),
			})
			own := &rows[len(rows)-1]
			own.MemoryLimit, own.CPULimit = meter.limitsOf(ctx, conn, own.ID)
		}
		rows[at].MemoryLimit, rows[at].CPULimit = sums(rows[at+1:])
		for _, c := range rows[at+1:] {
			if c.Disk != nil {
				rows[at].Disk = value(&cri.UInt64Value{Value: *c.Disk + deref(rows[at].Disk)})
			}
		}
	}
	return rows, nil
}

func deref(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

func value(v *cri.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}

// Meter remembers one reading for the next. It turns CPU time into CPUs: from the difference to the reading before,
// else as the runtime says.
type Meter struct {
	before, now map[string]*cri.CpuUsage
	limits      map[string]limits
	// Status is where the status of a container, with its limits, comes from; nil: the runtime is asked, once for each
	// container, since limits change seldom. It may return nil for one that is gone.
	Status func(ctx context.Context, id string) (*cri.ContainerStatus, error)
	// Blind: something has neither a reading before nor a rate of the runtime's.
	Blind bool
}

func (m *Meter) turn() {
	for id := range m.limits {
		if m.now[id] == nil { // gone, or without figures
			delete(m.limits, id)
		}
	}
	m.before, m.now, m.Blind = m.now, map[string]*cri.CpuUsage{}, false
}

func (m *Meter) read(id string, cpu *cri.CpuUsage) *float64 {
	if cpu == nil || cpu.GetUsageCoreNanoSeconds() == nil {
		return nil
	}
	m.now[id] = cpu
	if last := m.before[id]; last != nil && cpu.GetTimestamp() > last.GetTimestamp() {
		used := float64(cpu.GetUsageCoreNanoSeconds().GetValue()) - float64(last.GetUsageCoreNanoSeconds().GetValue())
		rate := max(used/float64(cpu.GetTimestamp()-last.GetTimestamp()), 0)
		return &rate
	}
	if nano := cpu.GetUsageNanoCores(); nano != nil {
		rate := float64(nano.GetValue()) / 1e9
		return &rate
	}
	m.Blind = true
	return nil
}

// limits are those of a container; nil: it has none.
type limits struct {
	memory *uint64
	cpu    *float64
}

// limitsOf are the limits of a container.
func (m *Meter) limitsOf(ctx context.Context, conn *connection.Connection, id string) (*uint64, *float64) {
	if known, ok := m.limits[id]; ok && m.Status == nil {
		return known.memory, known.cpu
	}
	status, err := m.status(ctx, conn, id)
	if err != nil || status == nil {
		return nil, nil // it has gone, or the next reading asks again
	}
	var l limits
	linux := status.GetResources().GetLinux()
	if bytes := linux.GetMemoryLimitInBytes(); bytes > 0 {
		n := uint64(bytes)
		l.memory = &n
	}
	if quota, period := linux.GetCpuQuota(), linux.GetCpuPeriod(); quota > 0 && period > 0 {
		cpus := float64(quota) / float64(period)
		l.cpu = &cpus
	}
	if m.limits == nil {
		m.limits = map[string]limits{}
	}
	m.limits[id] = l
	return l.memory, l.cpu
}

func (m *Meter) status(ctx context.Context, conn *connection.Connection, id string) (*cri.ContainerStatus, error) {
	if m.Status != nil {
		return m.Status(ctx, id)
	}
	response, err := conn.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	return response.GetStatus(), err
}

// sums are the limits of a pod: it is limited where each of its containers is.
func sums(containers []Row) (memory *uint64, cpu *float64) {
	var bytes uint64
	var cpus float64
	someMemory, someCPU := len(containers) > 0, len(containers) > 0
	for _, c := range containers {
		if c.MemoryLimit != nil {
			bytes += *c.MemoryLimit
		} else {
			someMemory = false
		}
		if c.CPULimit != nil {
			cpus += *c.CPULimit
		} else {
			someCPU = false
		}
	}
	if someMemory {
		memory = &bytes
	}
	if someCPU {
		cpu = &cpus
	}
	return memory, cpu
}

// Of is a share in percent; nil where one of the two is not known.
func Of(used, limit *float64) *float64 {
	if used == nil || limit == nil || *limit == 0 {
		return nil
	}
	share := 100 * *used / *limit
	return &share
}

// Floating is a number of bytes for Of.
func Floating(n *uint64) *float64 {
	if n == nil {
		return nil
	}
	f := float64(*n)
	return &f
}

// Sort orders pods, each with its containers below it, by what they use, most first.
func Sort(rows []Row, of func(Row) *float64) []Row {
	type group struct {
		by   float64
		rows []Row
	}
	var groups []group
	for _, row := range rows {
		if row.Container == "" {
			by := -1.0
			if v := of(row); v != nil {
				by = *v
			}
			groups = append(groups, group{by: by})
		}
		if last := len(groups) - 1; last >= 0 {
			groups[last].rows = append(groups[last].rows, row)
		}
	}
	slices.SortStableFunc(groups, func(a, b group) int { return cmp.Compare(b.by, a.by) })
	sorted := make([]Row, 0, len(rows))
	for _, g := range groups {
		sorted = append(sorted, g.rows...)
	}
	return sorted
}
