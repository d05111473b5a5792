package pods

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
	"berth/internal/cli/table"
)

func podsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{Use: "pods", Short: "List pods"}
	chosen := command.Select(cmd, cobra.NoArgs)
	rows := func(ctx context.Context, conn *connection.Connection, _ []string) ([]listing.Pod, error) {
		return listing.Pods(ctx, conn, chosen)
	}
	return command.List(a, cmd, rows,
		table.List[listing.Pod]{Name: func(r listing.Pod) string { return r.Display },
			ID: func(r listing.Pod) string { return r.ID }, Columns: []table.Column[listing.Pod]{
				{Title: "POD", Value: func(r listing.Pod) string { return r.Display }},
				{Title: "STATE", Value: func(r listing.Pod) string { return r.State }},
				{Title: "RUNNING", Value: func(r listing.Pod) string { return fmt.Sprintf("%d/%d", r.Running, r.Containers) },
					Order: func(a, b listing.Pod) int { return cmp.Compare(a.Running, b.Running) }},
				{Title: "IP", Value: func(r listing.Pod) string { return strings.Join(r.IPs, ",") }},
				{Title: "PORTS", Value: func(r listing.Pod) string { return strings.Join(r.Ports, ", ") }},
				{Title: "AGE", Value: func(r listing.Pod) string { return table.Age(time.Since(r.CreatedAt)) },
					Order: func(a, b listing.Pod) int { return b.CreatedAt.Compare(a.CreatedAt) }},
				{Title: "ID", Value: func(r listing.Pod) string { return table.ShortID(r.ID) }},
				{Title: "HANDLER", Wide: true, Value: func(r listing.Pod) string { return r.Handler }},
				{Title: "UID", Wide: true, Value: func(r listing.Pod) string { return r.UID }},
			}})
}
