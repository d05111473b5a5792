package volumes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
)

// volumeDetail is all that is known of a volume.
type volumeDetail struct {
	listing.Volume
	UsedBytes  uint64 `json:"usedBytes"`
	InodesUsed uint64 `json:"inodesUsed"`
}

func volumeCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "Create, list, show and remove named volumes",
		Long: `Create, list, show and remove named volumes. A volume is also made when a container first names it, and kept
until it is removed, whatever becomes of the container.`,
		Args: command.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(volumeCreateCommand(a), volumeListCommand(a),
		volumeInspectCommand(a), volumeRemoveCommand(a), volumePruneCommand(a))
	return cmd
}

func volumeListCommand(a *command.App) *cobra.Command {
	var unused bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List volumes",
		Args:  command.Arguments(cobra.NoArgs),
	}
	cmd.Flags().BoolVar(&unused, "unused", false, "only volumes that no container uses")
	rows := func(ctx context.Context, conn *connection.Connection, _ []string) ([]listing.Volume, error) {
		return listing.Volumes(ctx, conn, unused)
	}
	return command.List(a, cmd, rows,
		table.List[listing.Volume]{Name: func(r listing.Volume) string { return r.Name },
			Columns: []table.Column[listing.Volume]{
				{Title: "VOLUME", Value: func(r listing.Volume) string { return r.Name }},
				{Title: "AGE", Value: func(r listing.Volume) string { return table.Age(time.Since(r.CreatedAt)) },
					Order: func(a, b listing.Volume) int { return b.CreatedAt.Compare(a.CreatedAt) }},
				{Title: "USED BY", Value: func(r listing.Volume) string { return strings.Join(r.Containers, ",") }},
				{Title: "PATH", Wide: true, Value: func(r listing.Volume) string { return r.Path }},
			}})
}

func volumeCreateCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "create VOLUME...",
		Short: "Create empty volumes",
		Long: "Create empty volumes. " +
			"The first container that uses one fills it with what the container's image has at the same path.",
		Args: command.Arguments(cobra.MinimumNArgs(1)),
		RunE: a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
			var errs []error
			for _, name := range args {
				_, err := conn.Volumes.CreateVolume(ctx, &berthv1.CreateVolumeRequest{Name: name})
				if connection.Code(err) == codes.AlreadyExists {
					err = fmt.Errorf("volume %q exists already: `berth volume inspect %s` shows it", name, name)
				}
				if err != nil {
					errs = append(errs, connection.Plain(err))
					continue
				}
				fmt.Fprintln(a.Out, name)
			}
			return errors.Join(errs...)
		}),
	}
}

func volumeInspectCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "inspect VOLUME...",
		Short:             "Show volumes and how much is in them, as JSON or with -o yaml",
		Args:              command.Arguments(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.Complete(0, volumeNames),
		RunE: a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
			names, err := listing.NamesOfContainers(ctx, conn)
			if err != nil {
				return err
			}
			var all []volumeDetail
			for _, name := range args {
				status, err := conn.Volumes.VolumeStatus(ctx, &berthv1.VolumeStatusRequest{Name: name, Usage: true})
				if err != nil {
					return volumeError(name, err)
				}
				all = append(all, volumeDetail{listing.NewVolume(status.GetVolume(), names), status.GetUsedBytes(),
					status.GetInodesUsed()})
			}
			return a.Details(all)
		}),
	}
	a.Structured(cmd)
	return cmd
}

func volumeRemoveCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "rm VOLUME...",
		Short: "Remove volumes with what is in them",
		Long: "Remove volumes with what is in them. " +
			"A volume that a container uses is not removed, even if that container has ended.",
		Args:              command.Arguments(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.Complete(0, volumeNames),
		RunE: a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
			var errs []error
			for _, name := range args {
				if _, err := conn.Volumes.RemoveVolume(ctx, &berthv1.RemoveVolumeRequest{Name: name}); err != nil {
					errs = append(errs, volumeError(name, err))
					continue
				}
				fmt.Fprintln(a.Out, name)
			}
			return errors.Join(errs...)
		}),
	}
}

func volumePruneCommand(a *command.App) *cobra.Command {
	var o command.Removal
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove all volumes that no container uses, with what is in them",
		Long: `Remove all volumes that no container uses, with what is in them. They are listed first, and removed once
that is confirmed on the terminal. -f removes them without asking, and --dry-run only lists them.`,
		Args: command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.Check(a, cmd); err != nil {
				return err
			}
			return a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
				rows, err := listing.Volumes(ctx, conn, true)
				if err != nil {
					return err
				}
				var names []string
				for _, row := range rows {
					names = append(names, row.Name)
				}
				if goOn, err := o.Confirm(ctx, a, names); !goOn {
					return err
				}
				return pruneVolumes(ctx, a, conn, names, o.Force)
			})(cmd, args)
		},
	}
	o.Add(cmd)
	return cmd
}

// pruneVolumes removes volumes as far as no container has come to use them. tell has each name printed.
func pruneVolumes(ctx context.Context, a *command.App, conn *connection.Connection, names []string, tell bool) error {
	var errs []error
	for _, name := range names {
		_, err := conn.Volumes.RemoveVolume(ctx, &berthv1.RemoveVolumeRequest{Name: name})
		switch code := connection.Code(err); {
		case err == nil && tell:
			fmt.Fprintln(a.Out, name)
		case err == nil || code == codes.FailedPrecondition || code == codes.NotFound:
		default:
			errs = append(errs, volumeError(name, err))
		}
	}
	return errors.Join(errs...)
}

func volumeError(name string, err error) error {
	if connection.Code(err) == codes.NotFound {
		return &lookup.NotFoundError{Kind: "volume", Name: name, Try: "`berth volume ls` lists what there is."}
	}
	return connection.Plain(err)
}

func volumeNames(ctx context.Context, conn *connection.Connection) []string {
	list, err := conn.Volumes.ListVolumes(ctx, &berthv1.ListVolumesRequest{})
	if err != nil {
		return nil
	}
	var names []string
	for _, v := range list.GetVolumes() {
		names = append(names, v.GetName())
	}
	return names
}
