package pods

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/manifest"
)

func rmCommand(a *command.App) *cobra.Command {
	var all, force bool
	cmd := &cobra.Command{
		Use:   "rm POD|CONTAINER...",
		Short: "Remove pods or containers",
		Long: "Remove pods with their containers, volumes and logs, or single containers. " +
			"A running pod or container is removed only with --force.",
		Args:              namesOrAll(&all),
		ValidArgsFunction: a.Complete(0, command.PodNames, command.ContainerNames),
		RunE: eachTarget(a, &all, "remove", func(ctx context.Context, conn *connection.Connection, t target) error {
			return remove(ctx, a, conn, t, force)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "stop running pods and containers first")
	return cmd
}

func remove(ctx context.Context, a *command.App, conn *connection.Connection, t target, force bool) error {
	filter := &cri.ContainerFilter{PodSandboxId: t.pod.GetId()}
	if t.container != nil {
		filter.Id = t.container.Id
	}
	filter.State = &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}
	running, err := conn.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: filter})
	if err != nil {
		return connection.Plain(err)
	}
	if len(running.GetContainers()) > 0 {
		if !force {
			return fmt.Errorf("it is running: stop it with `berth stop %s`, or give --force", t)
		}
		if err := stop(ctx, conn, t, -1); err != nil {
			return err
		}
	}
	if t.container != nil {
		_, err := conn.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: t.container.Id})
		return connection.Plain(err)
	}
	store := a.Store(conn)
	if err := launch.RemovePod(ctx, conn.Runtime, store, t.pod); err != nil {
		return err
	}
	// A pod that another data directory was used for keeps its files there: say so rather than remove what is not known
	// here.
	if dir := t.pod.GetAnnotations()[manifest.AnnotationDirectory]; dir != "" {
		if _, err := os.Stat(dir); err == nil {
			fmt.Fprintf(a.Err, "warning: the pod's files are still in %s, which is not below --data-dir %s\n", dir, a.DataDir)
		}
	}
	return nil
}
