package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth/api/pouch"
	"berth/internal/cli/connection"
)

func (a *app) pauseCommand() *cobra.Command {
	return a.freezing("pause", "Freeze the processes of running containers",
		"Freeze the processes of running containers: "+
			"they keep their memory and use no processor until they are unpaused. A pod "+
			"stands for all its running containers.",
		func(ctx context.Context, client pouch.RuntimeServiceClient, id string) error {
			_, err := client.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: id})
			return err
		})
}

func (a *app) unpauseCommand() *cobra.Command {
	return a.freezing("unpause", "Let paused containers go on",
		"Let paused containers go on. A pod stands for all its containers.",
		func(ctx context.Context, client pouch.RuntimeServiceClient, id string) error {
			_, err := client.UnpauseContainer(ctx, &pouch.UnpauseContainerRequest{ContainerId: id})
			return err
		})
}

// freezing is a command that does one thing to containers.
func (a *app) freezing(verb, short, long string,
	do func(context.Context, pouch.RuntimeServiceClient, string) error) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: verb + " POD|CONTAINER...", Short: short, Long: long,
		Args:              namesOrAll(&all),
		ValidArgsFunction: a.complete(0, podNames, containerNames),
		RunE: a.each(&all, verb, func(ctx context.Context, conn *connection.Connection, t target) error {
			return eachRunning(ctx, conn, t, func(ctx context.Context, id string) error { return do(ctx, conn.Pouch, id) })
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods")
	return cmd
}
