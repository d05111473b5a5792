package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
	"berth/internal/cli/table"
)

func (a *app) devicesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "devices [RESOURCE...]",
		Short: "List devices of device plugins, and the containers that use them",
		Long: `List the devices that device plugins offer, and the containers that use them: those of the given resources, or
all.

berthd knows devices only if its device manager is on: device_plugins.enabled in its configuration.`,
		ValidArgsFunction: a.complete(0, resourceNames),
	}
	return listCommand(a, cmd, a.devices,
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

// devices lists devices, and warns of what is wrong with their resources.
func (a *app) devices(ctx context.Context, conn *connection.Connection, resources []string) ([]listing.Device, error) {
	rows, err := listing.Devices(ctx, conn, resources)
	warned := ""
	for _, row := range rows {
		if row.Problem != "" && row.Resource != warned {
			fmt.Fprintf(a.err, "warning: %s: %s\n", row.Resource, row.Problem)
			warned = row.Resource
		}
	}
	return rows, err
}
