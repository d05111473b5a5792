package node

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
	"berth/internal/cli/table"
)

func devicesCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "devices [RESOURCE...]",
		Short: "List devices of device plugins, and the containers that use them",
		Long: `List the devices that device plugins offer, and the containers that use them: those of the given resources, or
all.

berthd knows devices only if its device manager is on: device_plugins.enabled in its configuration.`,
		ValidArgsFunction: a.Complete(0, command.ResourceNames),
	}
	list := func(ctx context.Context, conn *connection.Connection, resources []string) ([]listing.Device, error) {
		return listDevices(ctx, a, conn, resources)
	}
	return command.List(a, cmd, list,
		table.List[listing.Device]{Name: func(r listing.Device) string { return r.ID },
			Columns: []table.Column[listing.Device]{
				{Title: "RESOURCE", Value: func(r listing.Device) string { return r.Resource }},
				{Title: "DEVICE", Value: func(r listing.Device) string { return r.ID }},
				{Title: "HEALTH", Value: func(r listing.Device) string { return r.Health() }},
				{Title: "NUMA", Value: func(r listing.Device) string { return numbers(r.NUMANodes) }},
				{Title: "HELD BY", Value: func(r listing.Device) string { return r.HeldBy() }},
				{Title: "PLUGIN", Wide: true, Value: func(r listing.Device) string { return r.Plugin }},
			}})
}

// listDevices lists devices, and warns of what is wrong with their resources.
func listDevices(ctx context.Context, a *command.App, conn *connection.Connection,
	resources []string) ([]listing.Device, error) {
	rows, err := listing.Devices(ctx, conn, resources)
	warned := ""
	for _, row := range rows {
		if row.Problem != "" && row.Resource != warned {
			fmt.Fprintf(a.Err, "warning: %s: %s\n", row.Resource, row.Problem)
			warned = row.Resource
		}
	}
	return rows, err
}
