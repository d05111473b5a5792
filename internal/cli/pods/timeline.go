package pods

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/internal/cli/command"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
	"berth/internal/cli/timeline"
)

// plainColumns is how wide a timeline is where there is no terminal.
const plainColumns = 120

func timelineCommand(a *command.App) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "timeline POD [POD]",
		Short: "Show where the time of a pod's start went",
		Long: `Show where the time of a pod's start went: a bar for each step of the pod and of its containers, on one scale.
The time between the calls of the client that started the pod is left out. An image that was pulled for the pod has a
bar, too.

With two pods, show both times of each step, and how much longer the second pod needed for it.`,
		Args:              command.Arguments(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: a.Complete(2, command.PodNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch format {
			case "", "svg", string(table.JSON), string(table.YAML):
			default:
				return command.Usage(cmd, fmt.Errorf("-o: %q is not one of svg, json and yaml", format))
			}
			ctx := cmd.Context()
			conn, err := a.Dial(ctx)
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
				return printComparison(a, cmd, timeline.Compare(lines[0], lines[1]), names, format)
			}
			line := lines[0]
			switch format {
			case "svg":
				return line.SVG(a.Out, names[0])
			case "":
				return line.Write(a.Out, terminalWidth(a))
			}
			return table.Document(a.Out, table.Format(format), line.Steps)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "svg, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"svg", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// printComparison prints a comparison of two pods.
func printComparison(a *command.App, cmd *cobra.Command, c *timeline.Comparison, names []string, format string) error {
	switch format {
	case "svg":
		return command.Usage(cmd, errors.New("-o svg: a picture is drawn of one pod, and not of two"))
	case "":
		return c.Write(a.Out, terminalWidth(a), names[0], names[1])
	}
	return table.Document(a.Out, table.Format(format), c.Differences)
}

// terminalWidth is the width of the output.
func terminalWidth(a *command.App) int {
	if out, ok := a.Out.(*os.File); ok {
		if width, _, err := term.GetSize(int(out.Fd())); err == nil {
			return width
		}
	}
	return plainColumns
}
