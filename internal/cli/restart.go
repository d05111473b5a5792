package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
)

func (a *app) restartCommand() *cobra.Command {
	var seconds int
	cmd := &cobra.Command{
		Use:   "restart POD|CONTAINER...",
		Short: "Restart pods or containers that berth run -d has made",
		Long: `Stop the containers of pods, or single containers, and start them again: as the next attempt of the same
container, with an empty root file system. Volumes, the address of the pod and the log of the last attempt stay; init
containers are not run again. The pod of an image that was stopped gets a new sandbox, and so another address.

Only what "berth run -d" has made can be restarted. A container of the CRI starts once, and a kubelet starts the next
attempt of its own containers itself.`,
		Example:           "  berth restart hello",
		Args:              arguments(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.complete(0, podNames, containerNames),
		RunE: a.each(new(bool), "restart", func(ctx context.Context, conn *connection.Connection, t target) error {
			launcher := &launch.Launcher{Runtime: conn.Runtime, Images: conn.Images, Store: a.store(conn),
				CreateWithVolumes: conn.CreateWithVolumes}
			name := ""
			if t.container != nil {
				name = t.container.GetMetadata().GetName()
			}
			return commandCode(launcher.Restart(ctx, t.pod, name, time.Duration(seconds)*time.Second))
		}),
	}
	cmd.Flags().IntVarP(&seconds, "time", "t", -1, "seconds until containers are killed; negative: the pod's grace period")
	return cmd
}
