package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

// endedRow is how a container ended.
type endedRow struct {
	ID        string `json:"id"`
	Container string `json:"container"`
	ExitCode  int32  `json:"exitCode"`
	Reason    string `json:"reason,omitempty"`
	Message   string `json:"message,omitempty"`
}

func waitCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait POD|CONTAINER...",
		Short: "Wait until containers have ended, and print their exit codes",
		Long: `Wait until containers have ended, and print the exit code of each, in the order of the arguments. For a pod,
wait for all its containers except sidecars. The command's own exit code is 0 whatever the containers' exit codes are.`,
		Example:           "  berth kill -s TERM hello/web && berth wait hello/web",
		Args:              command.Arguments(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.Complete(0, command.PodNames, command.ContainerNames),
		RunE: a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
			list, err := findTargets(ctx, a, conn, args, false)
			errs := []error{err}
			var containers []*lookup.Container
			for _, t := range list {
				if t.container != nil {
					containers = append(containers, t.container)
					continue
				}
				own, err := lookup.PodContainers(ctx, conn.Runtime, t.pod)
				if err != nil {
					errs = append(errs, fmt.Errorf("wait for %s: %w", t, err))
					continue
				}
				for _, c := range own {
					if c.Annotations[manifest.AnnotationKind] != manifest.KindSidecar {
						containers = append(containers, c)
					}
				}
			}
			rows, err := waitFor(ctx, conn, containers)
			errs = append(errs, err)
			if a.Format.Structured() {
				return errors.Join(append(errs, table.Document(a.Out, a.Format, rows))...)
			}
			for _, row := range rows {
				fmt.Fprintln(a.Out, row.ExitCode)
			}
			return errors.Join(errs...)
		}),
	}
	a.Structured(cmd)
	return cmd
}

// waitFor waits for all containers. The rows are of those that have ended; the error joins one for each of the others.
func waitFor(ctx context.Context, conn *connection.Connection, containers []*lookup.Container) ([]endedRow, error) {
	ctx, end := context.WithCancel(ctx)
	defer end() // the watch listens no longer
	watch := launch.NewWatch(ctx, conn.Runtime)
	rows, errs := make([]*endedRow, len(containers)), make([]error, len(containers))
	var waits sync.WaitGroup
	for i, c := range containers {
		waits.Go(func() {
			status, err := watch.Exited(ctx, c.Id)
			if err != nil {
				errs[i] = fmt.Errorf("wait for %s: %w", c.ShortName(), err)
				return
			}
			rows[i] = newEndedRow(c, status)
		})
	}
	waits.Wait()
	ended := []endedRow{}
	for _, row := range rows {
		if row != nil {
			ended = append(ended, *row)
		}
	}
	return ended, errors.Join(errs...)
}

func newEndedRow(c *lookup.Container, status *cri.ContainerStatus) *endedRow {
	return &endedRow{ID: c.Id, Container: c.ShortName(), ExitCode: status.GetExitCode(), Reason: status.GetReason(),
		Message: status.GetMessage()}
}
