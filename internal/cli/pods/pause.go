package pods

import (
	"context"

	"github.com/spf13/cobra"

	"berth/api/pouch"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
)

func pauseCommand(a *command.App) *cobra.Command {
	return freezing(a, "pause", "Freeze the processes of running containers",
		`Freeze the processes of running containers. They keep their memory, and use no CPU time until they are unpaused.
For a pod, all its running containers are frozen.`,
		func(ctx context.Context, client pouch.RuntimeServiceClient, id string) error {
			_, err := client.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: id})
			return err
		})
}

func unpauseCommand(a *command.App) *cobra.Command {
	return freezing(a, "unpause", "Continue paused containers",
		"Continue paused containers. For a pod, all its containers continue.",
		func(ctx context.Context, client pouch.RuntimeServiceClient, id string) error {
			_, err := client.UnpauseContainer(ctx, &pouch.UnpauseContainerRequest{ContainerId: id})
			return err
		})
}

// freezing is a command that does one thing to containers.
func freezing(a *command.App, verb, short, long string,
	do func(context.Context, pouch.RuntimeServiceClient, string) error) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: verb + " POD|CONTAINER...", Short: short, Long: long,
		Args:              namesOrAll(&all),
		ValidArgsFunction: a.Complete(0, command.PodNames, command.ContainerNames),
		RunE: eachTarget(a, &all, verb, func(ctx context.Context, conn *connection.Connection, t target) error {
			return eachRunning(ctx, conn, t, all,
				func(ctx context.Context, id string) error { return do(ctx, conn.Pouch, id) })
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods")
	return cmd
}
