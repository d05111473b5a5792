package images

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"berth/internal/cli/archive"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/streaming"
)

func saveCommand(a *command.App) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "save IMAGE...",
		Short: "Save images to an archive",
		Long: `Save images to an archive. No network is needed. The archive is an OCI image layout in a tar, which berth load,
docker load, podman load and ctr images import can read. The ID and the configuration of an image do not change. Its
manifest is new, because the layers in the archive are not compressed. The archive has an image under the name that is
given here; an image that is given by its ID is saved with all its tags. Without -o the archive is written to
standard output.`,
		Example: `  berth save -o busybox.tar busybox:1.36
  berth save busybox:1.36 nginx:1.27 | zstd > images.tar.zst`,
		Args:              command.Arguments(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.Complete(0, command.ImageNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f, ok := a.Out.(*os.File); ok && standard(file) && streaming.IsTerminal(f) {
				return command.Usage(cmd, errors.New("the archive is not written to a terminal: give a file with -o, "+
					"or redirect standard output"))
			}
			return a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
				if !standard(file) {
					return explain(ctx, conn, archive.SaveFile(ctx, conn.Pulls, args, file), args...)
				}
				return explain(ctx, conn, archive.Save(ctx, conn.Pulls, args, a.Out), args...)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "the archive; - is standard output")
	_ = cmd.MarkFlagFilename("output")
	return cmd
}
