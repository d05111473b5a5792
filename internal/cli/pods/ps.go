package pods

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
	"berth/internal/cli/table"
)

func psCommand(a *command.App) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "ps [POD...]",
		Short: "List containers",
		Long:  "List the running containers of the given pods, or of all pods.",
		Example: `  berth ps -a -l app=hello
  berth ps -o jsonpath='{range [*]}{.pod}/{.name}{"\t"}{.state}{"\n"}{end}'`,
		ValidArgsFunction: a.Complete(0, command.PodNames),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list containers that do not run")
	chosen := command.Select(cmd, cobra.ArbitraryArgs)
	rows := func(ctx context.Context, conn *connection.Connection, pods []string) ([]listing.Container, error) {
		return listing.Containers(ctx, conn, pods, all, chosen)
	}
	return command.List(a, cmd, rows,
		table.List[listing.Container]{Name: func(r listing.Container) string { return r.Display },
			ID: func(r listing.Container) string { return r.ID }, Columns: []table.Column[listing.Container]{
				{Title: "CONTAINER", Value: func(r listing.Container) string { return r.Display }},
				{Title: "STATE", Value: func(r listing.Container) string { return r.Status(time.Now()) }},
				{Title: "IMAGE", Value: func(r listing.Container) string { return r.Image }},
				{Title: "AGE", Value: func(r listing.Container) string { return table.Age(time.Since(r.CreatedAt)) },
					Order: func(a, b listing.Container) int { return b.CreatedAt.Compare(a.CreatedAt) }},
				{Title: "ID", Value: func(r listing.Container) string { return table.ShortID(r.ID) }},
				{Title: "KIND", Wide: true, Value: func(r listing.Container) string { return r.Kind }},
				{Title: "ATTEMPT", Wide: true, Value: func(r listing.Container) string { return fmt.Sprint(r.Attempt) },
					Order: func(a, b listing.Container) int { return cmp.Compare(a.Attempt, b.Attempt) }},
				{Title: "NAMESPACE", Wide: true, Value: func(r listing.Container) string { return r.Namespace }},
				{Title: "POD ID", Wide: true, Value: func(r listing.Container) string { return table.ShortID(r.PodID) }},
				{Title: "IMAGE ID", Wide: true, Value: func(r listing.Container) string { return table.ShortID(r.ImageID) }},
			}})
}
