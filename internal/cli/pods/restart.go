package pods

import (
	"context"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/manifest"
)

func restartCommand(a *command.App) *cobra.Command {
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
		Args:              command.Arguments(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.Complete(0, command.PodNames, command.ContainerNames),
		RunE: eachTarget(a, new(bool), "restart", func(ctx context.Context, conn *connection.Connection, t target) error {
			launcher := &launch.Launcher{Runtime: conn.Runtime, Images: conn.Images, Store: a.Store(conn),
				CreateWithVolumes: conn.CreateWithVolumes, Repeatable: true}
			name := ""
			if t.container != nil {
				name = t.container.GetMetadata().GetName()
			}
			return command.ProgramError(launcher.Restart(ctx, t.pod, name, manifest.Seconds(int64(seconds))))
		}),
	}
	cmd.Flags().IntVarP(&seconds, "time", "t", -1, "seconds until containers are killed; negative: the pod's grace period")
	return cmd
}
