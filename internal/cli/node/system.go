package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/space"
	"berth/internal/cli/table"
)

func systemCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "system",
		Short: "Show the disk space of images, containers, volumes and logs",
		Args:  command.Subcommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(diskCommand(a))
	return cmd
}

func diskCommand(a *command.App) *cobra.Command {
	var each bool
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Show the disk space of images, containers, volumes and logs",
		Long: `Show the disk space that images, containers, volumes and logs take, and how much of it nothing needs: images
that no container uses and that are not pinned, the writable layers and logs of containers that have ended, and volumes
that no container uses. "berth prune" gives back what "berth run" has made of it.

Images share layers: the sum counts each layer once. With -v, each image, container and volume is listed. UNSHARED is
what the removal of one image gives back.`,
		Example: "  berth system df -v",
		Args:    command.Arguments(cobra.NoArgs),
		RunE: a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
			report, err := space.Read(ctx, conn)
			if err != nil {
				return err
			}
			if a.Format.Structured() {
				return table.Document(a.Out, a.Format, report)
			}
			return printSpace(a, report, each)
		}),
	}
	cmd.Flags().BoolVarP(&each, "verbose", "v", false, "list each image, container and volume")
	a.Structured(cmd)
	return cmd
}

// kindRow is one line of the summary.
type kindRow struct {
	name string
	space.Kind
}

func printSpace(a *command.App, report *space.Report, each bool) error {
	rows := []kindRow{{"images", report.Images}, {"containers", report.Containers}, {"volumes", report.Volumes},
		{"logs", report.Logs}}
	err := printTable(a, rows, []table.Column[kindRow]{
		{Title: "KIND", Value: func(r kindRow) string { return r.name }},
		{Title: "TOTAL", Value: func(r kindRow) string { return fmt.Sprint(r.Total) }},
		{Title: "ACTIVE", Value: func(r kindRow) string { return fmt.Sprint(r.Active) }},
		{Title: "SIZE", Value: func(r kindRow) string { return table.Bytes(r.Bytes) }},
		{Title: "RECLAIMABLE", Value: func(r kindRow) string { return table.Bytes(r.ReclaimableBytes) }},
	})
	if err != nil || !each {
		return err
	}
	fmt.Fprintln(a.Out)
	if err := printTable(a, report.ImageList, []table.Column[*space.Image]{
		{Title: "IMAGE", Value: func(i *space.Image) string { return strings.Join(i.Names, ",") }},
		{Title: "ID", Value: func(i *space.Image) string { return table.ShortID(i.ID) }},
		{Title: "SIZE", Value: func(i *space.Image) string { return table.Bytes(i.Bytes) }},
		{Title: "UNSHARED", Value: func(i *space.Image) string { return table.Bytes(i.UnsharedBytes) }},
		{Title: "USED", Value: func(i *space.Image) string { return table.Yes(i.Used) }},
		{Title: "PINNED", Value: func(i *space.Image) string { return table.Yes(i.Pinned) }},
	}); err != nil {
		return err
	}
	fmt.Fprintln(a.Out)
	if err := printTable(a, report.ContainerList, []table.Column[space.Container]{
		{Title: "CONTAINER", Value: func(c space.Container) string { return c.Name }},
		{Title: "RUNNING", Value: func(c space.Container) string { return table.Yes(c.Running) }},
		{Title: "WRITABLE LAYER", Value: func(c space.Container) string { return table.Bytes(c.WritableBytes) }},
		{Title: "LOGS", Value: func(c space.Container) string { return table.Bytes(c.LogBytes) }},
	}); err != nil {
		return err
	}
	fmt.Fprintln(a.Out)
	return printTable(a, report.VolumeList, []table.Column[space.Volume]{
		{Title: "VOLUME", Value: func(v space.Volume) string { return v.Name }},
		{Title: "SIZE", Value: func(v space.Volume) string { return table.Bytes(v.Bytes) }},
		{Title: "USED", Value: func(v space.Volume) string { return table.Yes(v.Used) }},
	})
}

func printTable[T any](a *command.App, rows []T, columns []table.Column[T]) error {
	return table.List[T]{Columns: columns}.Print(a.Out, a.Format, table.View{}, rows)
}
