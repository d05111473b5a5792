package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
	"berth/internal/cli/timeline"
)

// plainColumns is how wide a timeline is where there is no terminal.
const plainColumns = 120

func (a *app) timelineCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "timeline POD [POD]",
		Short: "Show where the time of a pod's start went",
		Long: `Show where the time of a pod's start went: a bar for each step of the pod and of its containers, on one scale.
The time between the calls of the client that started the pod is left out.

With two pods, show both times of each step, and how much longer the second pod needed for it.`,
		Args:              arguments(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: a.complete(2, podNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch format {
			case "", "svg", string(table.JSON), string(table.YAML):
			default:
				return &usageError{fmt.Errorf("-o: %q is not one of svg, json and yaml", format), cmd.CommandPath()}
			}
			ctx := cmd.Context()
			conn, err := a.dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			var lines []*timeline.Timeline
			var names []string
			for _, arg := range args {
				pod, err := lookup.Pod(ctx, conn.Runtime, arg)
				if err != nil {
					return err
				}
				steps, err := timeline.Read(ctx, conn, pod)
				if err != nil {
					return err
				}
				if len(steps) == 0 {
					return fmt.Errorf("the runtime does not report the times of the steps of pod %s", lookup.PodName(pod))
				}
				lines, names = append(lines, timeline.New(steps)), append(names, lookup.PodName(pod))
			}
			if len(lines) == 2 {
				return a.compare(timeline.Compare(lines[0], lines[1]), names, format)
			}
			line := lines[0]
			switch format {
			case "svg":
				return line.SVG(a.out, names[0])
			case "":
				return line.Write(a.out, a.columns())
			}
			return table.Document(a.out, table.Format(format), line.Steps)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "svg, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"svg", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// compare prints a comparison of two pods.
func (a *app) compare(c *timeline.Comparison, names []string, format string) error {
	switch format {
	case "svg":
		return &usageError{errors.New("-o svg: a picture is drawn of one pod, and not of two"), "berth timeline"}
	case "":
		return c.Write(a.out, a.columns(), names[0], names[1])
	}
	return table.Document(a.out, table.Format(format), c.Differences)
}

// columns is the width of the output.
func (a *app) columns() int {
	if out, ok := a.out.(*os.File); ok {
		if width, _, err := term.GetSize(int(out.Fd())); err == nil {
			return width
		}
	}
	return plainColumns
}
