package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
	"berth/internal/cli/timeline"
)

// plainColumns is how wide a timeline is where there is no terminal.
const plainColumns = 120

func (a *app) timelineCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "timeline POD",
		Short: "Show where the time of a pod's start went",
		Long: `Show where the time of a pod's start went: a bar for each step of the pod and of its containers, on one scale.
The time between the calls of the client that started the pod is left out.`,
		Args:              arguments(cobra.ExactArgs(1)),
		ValidArgsFunction: a.complete(1, podNames),
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
			pod, err := lookup.Pod(ctx, conn.Runtime, args[0])
			if err != nil {
				return err
			}
			steps, err := podSteps(ctx, conn, pod)
			if err != nil {
				return err
			}
			if len(steps) == 0 {
				return fmt.Errorf("the runtime does not report the times of the steps of pod %s", lookup.PodName(pod))
			}
			line := timeline.New(steps)
			switch format {
			case "svg":
				return line.SVG(a.out, lookup.PodName(pod))
			case "":
				columns := plainColumns
				if out, ok := a.out.(*os.File); ok {
					if width, _, err := term.GetSize(int(out.Fd())); err == nil {
						columns = width
					}
				}
				return line.Write(a.out, columns)
			}
			return table.Document(a.out, table.Format(format), line.Steps)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "svg, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"svg", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// podSteps are the steps of a pod and of its containers.
func podSteps(ctx context.Context, conn *connection.Connection, pod *cri.PodSandbox) ([]timeline.Step, error) {
	status, err := conn.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.Id, Verbose: true})
	if err != nil {
		return nil, connection.Plain(err)
	}
	steps, err := timeline.Parse("pod", status.GetInfo())
	if err != nil {
		return nil, err
	}
	containers, err := lookup.Containers(ctx, conn.Runtime, &cri.ContainerFilter{PodSandboxId: pod.Id})
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		status, err := conn.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id, Verbose: true})
		if err != nil {
			return nil, connection.Plain(err)
		}
		more, err := timeline.Parse(status.GetStatus().GetMetadata().GetName(), status.GetInfo())
		if err != nil {
			return nil, err
		}
		steps = append(steps, more...)
	}
	return steps, nil
}
