package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/ocispec"
)

func killCommand(a *command.App) *cobra.Command {
	var signal string
	var all, processes bool
	kill := eachTarget(a, &all, "kill", func(ctx context.Context, conn *connection.Connection, t target) error {
		return eachRunning(ctx, conn, t, all, func(ctx context.Context, id string) error {
			_, err := conn.Containers.Kill(ctx, &berthv1.KillRequest{ContainerId: id, Signal: signal, All: processes})
			return err
		})
	})
	cmd := &cobra.Command{
		Use:   "kill POD|CONTAINER...",
		Short: "Send a signal to running containers",
		Long: `Send a signal to the main process of running containers; without -s, SIGKILL. For a pod, all its running
containers get the signal. The command does not wait for the processes to end. To wait, use berth wait; to give them
a grace period, use berth stop.`,
		Example:           "  berth kill -s HUP hello/web\n  berth kill hello",
		Args:              namesOrAll(&all),
		ValidArgsFunction: a.Complete(0, command.PodNames, command.ContainerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, ok := ocispec.ParseSignal(signal); !ok {
				return command.Usage(cmd, fmt.Errorf("signal %q is neither a signal's name nor a number", signal))
			}
			return kill(cmd, args)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods")
	cmd.Flags().StringVarP(&signal, "signal", "s", "KILL", "the signal: a name with or without SIG, or a number")
	cmd.Flags().BoolVar(&processes, "all-processes", false,
		"signal every process of the containers, not only the main process")
	return cmd
}

// eachRunning does something to a container, or to the running ones of a pod, which may end meanwhile. A pod of which
// none runs is an error, unless all pods are meant.
func eachRunning(ctx context.Context, conn *connection.Connection, t target, all bool,
	do func(ctx context.Context, id string) error) error {
	if t.container != nil {
		return connection.Plain(do(ctx, t.container.Id))
	}
	list, err := lookup.Containers(ctx, conn.Runtime, &cri.ContainerFilter{PodSandboxId: t.pod.Id})
	if err != nil {
		return err
	}
	running := slices.DeleteFunc(slices.Clone(list), func(c *lookup.Container) bool {
		return c.State != cri.ContainerState_CONTAINER_RUNNING
	})
	if len(running) == 0 && !all {
		return noneRuns(list)
	}
	var errs []error
	for _, c := range running {
		err := do(ctx, c.Id)
		if code := connection.Code(err); code != codes.FailedPrecondition && code != codes.NotFound {
			errs = append(errs, connection.Plain(err))
		}
	}
	return errors.Join(errs...)
}

// noneRuns says what the containers of a pod do of which none runs.
func noneRuns(list []*lookup.Container) error {
	var states []string
	for _, c := range lookup.Latest(list) {
		state := strings.ToLower(strings.TrimPrefix(c.State.String(), "CONTAINER_"))
		states = append(states, c.GetMetadata().GetName()+": "+state)
	}
	if len(states) == 0 {
		return errors.New("the pod has no containers")
	}
	return fmt.Errorf("the pod has no running container (%s)", strings.Join(states, ", "))
}
