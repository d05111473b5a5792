package pods

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
	"berth/internal/cli/usage"
)

func statsCommand(a *command.App) *cobra.Command {
	var once bool
	var interval time.Duration
	var by string
	cmd := &cobra.Command{
		Use:     "stats [POD...]",
		Aliases: []string{"top"},
		Short:   "Show what pods and containers use",
		Long: `Show how much CPU, memory, disk and network pods and their containers use. On a terminal, the table is updated
until Ctrl-C; otherwise it is shown once. CPU% is 100 for one CPU. LIM% is the share of the limit of CPU or memory that
is used. A terminal that is too narrow shows the beginnings and the ends of long names.`,
		ValidArgsFunction: a.Complete(0, command.PodNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < 100*time.Millisecond {
				return command.Usage(cmd, fmt.Errorf("--interval: %v is shorter than 100ms", interval))
			}
			if by != "" && !slices.Contains(sortable, by) {
				err := fmt.Errorf("--sort-by: %q is none of %s", by, strings.Join(sortable, ", "))
				return command.Usage(cmd, err)
			}
			ctx := cmd.Context()
			conn, err := a.Dial(ctx)
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
			file, isFile := a.Out.(*os.File)
			if once || a.Format.Structured() || !isFile || !streaming.IsTerminal(file) {
				return statsOnce(ctx, a, conn, wanted, by)
			}
			return statsLive(ctx, a, conn, file, wanted, by, interval)
		},
	}
	cmd.Flags().StringVar(&by, "sort-by", "", "order pods by what they use, most first: "+strings.Join(sortable, ", "))
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions(sortable, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&once, "no-stream", false, "show the table once")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two updates of the table")
	a.Output(cmd)
	return cmd
}

// sampling is the time between the two readings of CPU time that a single table needs.
const sampling = 500 * time.Millisecond

func statsOnce(ctx context.Context, a *command.App, conn *connection.Connection, wanted map[string]bool,
	by string) error {
	meter := &usage.Meter{}
	rows, err := usage.Read(ctx, conn, wanted, meter)
	if err != nil {
		return err
	}
	if len(rows) > 0 && meter.Blind {
		if err := sleep(ctx, sampling); err != nil {
			return err
		}
		if rows, err = usage.Read(ctx, conn, wanted, meter); err != nil {
			return err
		}
	}
	return printUsage(a.Out, a.Format, command.Columns(a.Out), sorted(rows, by))
}

// statsLive updates a table on a terminal. What has no room there is left out: else the lines that matter most, which
// are the first, would have left the screen.
func statsLive(ctx context.Context, a *command.App, conn *connection.Connection, terminal *os.File,
	wanted map[string]bool,
	by string, interval time.Duration) error {
	meter := &usage.Meter{}
	for wait := sampling; ; wait = interval {
		rows, err := usage.Read(ctx, conn, wanted, meter)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var screen bytes.Buffer
		columns, lines := streaming.Size(terminal)
		if err := printUsage(&screen, a.Format, int(columns), sorted(rows, by)); err != nil {
			return err
		}
		const clear = "\x1b[H\x1b[2J" // home, clear
		if _, err := io.WriteString(terminal, clear+table.Fit(screen.String(), int(columns), int(lines))); err != nil {
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

// sortable are the columns by which pods can be ordered.
var sortable = []string{"cpu", "memory", "disk", "processes", "received", "sent"}

// sorted orders pods by one of sortable; empty: by their names.
func sorted(rows []usage.Row, by string) []usage.Row {
	of := map[string]func(usage.Row) *float64{
		"cpu":       func(r usage.Row) *float64 { return r.CPU },
		"memory":    func(r usage.Row) *float64 { return usage.Floating(r.Memory) },
		"disk":      func(r usage.Row) *float64 { return usage.Floating(r.Disk) },
		"processes": func(r usage.Row) *float64 { return usage.Floating(r.Processes) },
		"received":  func(r usage.Row) *float64 { return usage.Floating(r.Received) },
		"sent":      func(r usage.Row) *float64 { return usage.Floating(r.Sent) },
	}[by]
	if of == nil {
		return rows
	}
	return usage.Sort(rows, of)
}

// leastName is how many characters of a name are shown on the narrowest terminal.
const leastName = 12

// printUsage prints a table that fits so many columns, for which the middle of long names is left out; 0: names are
// shown whole.
func printUsage(w io.Writer, format table.Format, columns int, rows []usage.Row) error {
	if format != table.Table || columns == 0 {
		return table.PrintDense(w, format, rows, usageColumns(math.MaxInt))
	}
	var whole bytes.Buffer
	if err := table.PrintDense(&whole, format, rows, usageColumns(math.MaxInt)); err != nil {
		return err
	}
	name, line := 0, 0
	for _, row := range rows {
		name = max(name, utf8.RuneCountInString(row.Display))
	}
	for text := range strings.Lines(whole.String()) {
		line = max(line, utf8.RuneCountInString(strings.TrimSuffix(text, "\n")))
	}
	return table.PrintDense(w, format, rows, usageColumns(max(leastName, name-max(0, line-columns))))
}

// usageColumns are the columns of a table, which fit into 80 characters together with a name of 22. Sizes are
// quantities of Kubernetes.
func usageColumns(name int) []table.Column[usage.Row] {
	size := func(n *uint64) string {
		if n == nil {
			return "-"
		}
		return strings.TrimSuffix(table.Bytes(*n), "B")
	}
	percent := func(share *float64) string {
		if share == nil {
			return "-"
		}
		return fmt.Sprintf("%.0f", *share)
	}
	return []table.Column[usage.Row]{
		{Title: "POD/CONTAINER", Value: func(r usage.Row) string { return table.Shorten(r.Display, name) }},
		{Title: "CPU%", Value: func(r usage.Row) string {
			if r.CPU == nil {
				return "-"
			}
			return fmt.Sprintf("%.1f", *r.CPU*100)
		}},
		{Title: "LIM%", Value: func(r usage.Row) string { return percent(usage.Of(r.CPU, r.CPULimit)) }},
		{Title: "MEMORY", Value: func(r usage.Row) string { return size(r.Memory) }},
		{Title: "LIM%", Value: func(r usage.Row) string {
			return percent(usage.Of(usage.Floating(r.Memory), usage.Floating(r.MemoryLimit)))
		}},
		{Title: "DISK", Value: func(r usage.Row) string { return size(r.Disk) }},
		{Title: "NET IN", Value: func(r usage.Row) string { return size(r.Received) }},
		{Title: "NET OUT", Value: func(r usage.Row) string { return size(r.Sent) }},
		{Title: "PIDS", Value: func(r usage.Row) string {
			if r.Processes == nil {
				return "-"
			}
			return fmt.Sprint(*r.Processes)
		}},
		{Title: "RSS", Wide: true, Value: func(r usage.Row) string { return size(r.RSS) }},
		{Title: "ID", Wide: true, Value: func(r usage.Row) string { return table.ShortID(r.ID) }},
	}
}
