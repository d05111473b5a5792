package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
)

// usageRow is the usage of a container, or of a pod as a whole. The runtime does not know the figures that are nil.
type usageRow struct {
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

	display string
}

func (a *app) statsCommand() *cobra.Command {
	var once bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "stats [POD...]",
		Short: "Show what pods and containers use",
		Long: `Show how much CPU, memory, disk and network pods and their containers use. On a terminal, the table is updated
until Ctrl-C; otherwise it is shown once.`,
		ValidArgsFunction: a.complete(0, podNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < 100*time.Millisecond {
				return &usageError{fmt.Errorf("--interval: %v is shorter than 100ms", interval), cmd.CommandPath()}
			}
			ctx := cmd.Context()
			conn, err := a.dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			wanted := map[string]bool{}
			for _, name := range args {
				pod, err := lookup.Pod(ctx, conn.Runtime, name)
				if err != nil {
					return err
				}
				wanted[pod.Id] = true
			}
			file, isFile := a.out.(*os.File)
			if once || a.format.Structured() || !isFile || !streaming.IsTerminal(file) {
				return a.statsOnce(ctx, conn, wanted)
			}
			return a.statsLive(ctx, conn, wanted, interval)
		},
	}
	cmd.Flags().BoolVar(&once, "no-stream", false, "show the table once")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two updates of the table")
	a.output(cmd)
	return cmd
}

// sampling is the time between the two readings of CPU time that a single table needs.
const sampling = 500 * time.Millisecond

func (a *app) statsOnce(ctx context.Context, conn *connection.Connection, wanted map[string]bool) error {
	meter := &cpuMeter{}
	rows, err := usage(ctx, conn, wanted, meter)
	if err != nil {
		return err
	}
	if len(rows) > 0 && meter.blind {
		if err := sleep(ctx, sampling); err != nil {
			return err
		}
		if rows, err = usage(ctx, conn, wanted, meter); err != nil {
			return err
		}
	}
	return printUsage(a.out, a.format, rows)
}

func (a *app) statsLive(ctx context.Context, conn *connection.Connection, wanted map[string]bool,
	interval time.Duration) error {
	meter := &cpuMeter{}
	for wait := sampling; ; wait = interval {
		rows, err := usage(ctx, conn, wanted, meter)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var screen bytes.Buffer
		screen.WriteString("\x1b[H\x1b[2J") // home, clear
		if err := printUsage(&screen, a.format, rows); err != nil {
			return err
		}
		if _, err := a.out.Write(screen.Bytes()); err != nil {
			return err
		}
		if sleep(ctx, wait) != nil {
			return nil // Ctrl-C is how it is meant to end
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func printUsage(w io.Writer, format table.Format, rows []usageRow) error {
	size := func(n *uint64) string {
		if n == nil {
			return "-"
		}
		return table.Bytes(*n)
	}
	return table.Print(w, format, rows, []table.Column[usageRow]{
		{Title: "POD/CONTAINER", Value: func(r usageRow) string { return r.display }},
		{Title: "CPU %", Value: func(r usageRow) string {
			if r.CPU == nil {
				return "-"
			}
			return fmt.Sprintf("%.1f", *r.CPU*100)
		}},
		{Title: "MEMORY", Value: func(r usageRow) string { return size(r.Memory) }},
		{Title: "DISK", Value: func(r usageRow) string { return size(r.Disk) }},
		{Title: "NET IN", Value: func(r usageRow) string { return size(r.Received) }},
		{Title: "NET OUT", Value: func(r usageRow) string { return size(r.Sent) }},
		{Title: "PROCESSES", Value: func(r usageRow) string {
			if r.Processes == nil {
				return "-"
			}
			return fmt.Sprint(*r.Processes)
		}},
		{Title: "RSS", Wide: true, Value: func(r usageRow) string { return size(r.RSS) }},
		{Title: "ID", Wide: true, Value: func(r usageRow) string { return table.ShortID(r.ID) }},
	})
}

// usage reads what pods use: a row for the pod, and below it one for each container.
func usage(ctx context.Context, conn *connection.Connection, wanted map[string]bool,
	meter *cpuMeter) ([]usageRow, error) {
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
	var rows []usageRow
	for _, pod := range pods { // in the order of all lists
		stats := byID[pod.Id]
		if stats == nil || len(wanted) > 0 && !wanted[pod.Id] {
			continue
		}
		linux := stats.GetLinux()
		network := linux.GetNetwork().GetDefaultInterface()
		rows = append(rows, usageRow{
			Pod: lookup.PodName(pod), ID: pod.Id, display: shortPodName(pod),
			CPU: meter.read(pod.Id, linux.GetCpu()), Memory: value(linux.GetMemory().GetWorkingSetBytes()),
			RSS: value(linux.GetMemory().GetRssBytes()), Processes: value(linux.GetProcess().GetProcessCount()),
			Received: value(network.GetRxBytes()), Sent: value(network.GetTxBytes()),
		})
		for _, c := range linux.GetContainers() {
			name := c.GetAttributes().GetMetadata().GetName()
			rows = append(rows, usageRow{
				Pod: lookup.PodName(pod), Container: name, ID: c.GetAttributes().GetId(), display: "  " + name,
				CPU: meter.read(c.GetAttributes().GetId(), c.GetCpu()), Memory: value(c.GetMemory().GetWorkingSetBytes()),
				RSS: value(c.GetMemory().GetRssBytes()), Disk: value(c.GetWritableLayer().GetUsedBytes()),
			})
		}
	}
	return rows, nil
}

func value(v *cri.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}

// cpuMeter turns CPU time into CPUs: from the difference to the reading before, else as the runtime says.
type cpuMeter struct {
	before, now map[string]*cri.CpuUsage
	blind       bool // something has neither
}

func (m *cpuMeter) turn() {
	m.before, m.now, m.blind = m.now, map[string]*cri.CpuUsage{}, false
}

func (m *cpuMeter) read(id string, cpu *cri.CpuUsage) *float64 {
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
	m.blind = true
	return nil
}
