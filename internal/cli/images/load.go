package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/archive"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
)

// loadedRow is an image that came in an archive.
type loadedRow struct {
	ID    string   `json:"id"`
	Names []string `json:"names,omitempty"`
}

func loadCommand(a *command.App) *cobra.Command {
	var file string
	var pin bool
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Load images from an archive",
		Long: `Load the images of an archive that docker save or podman save wrote, or of an OCI image layout in a tar. The
archive may be compressed by gzip or zstd. Without -i it is read from standard input.`,
		Example: `  berth load -i busybox.tar
  docker save busybox | berth load`,
		Args: command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if standard(file) && streaming.IsTerminal(a.In) {
				return command.Usage(cmd, errors.New("the archive is not read from a terminal: give a file with -i, "+
					"or redirect standard input"))
			}
			return a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
				return load(ctx, a, conn, file, pin)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVarP(&file, "input", "i", "", "the archive; - is standard input")
	_ = cmd.MarkFlagFilename("input")
	cmd.Flags().BoolVar(&pin, "pin", false, "pin the images, so that a kubelet does not remove them to free disk space")
	a.Structured(cmd)
	return cmd
}

// standard says whether the name of an archive stands for standard input or output.
func standard(file string) bool { return file == "" || file == "-" }

// load loads the images of an archive, and prints which they are.
func load(ctx context.Context, a *command.App, conn *connection.Connection, file string, pin bool) error {
	in := a.Input(ctx)
	if !standard(file) {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	images, err := archive.Load(ctx, conn.Pulls, in, pin)
	if err != nil {
		return err
	}
	loaded := []loadedRow{}
	for _, image := range images {
		loaded = append(loaded, loadedRow{image.GetId(), image.GetNames()})
	}
	if a.Format.Structured() {
		return table.Document(a.Out, a.Format, loaded)
	}
	for _, image := range loaded {
		fmt.Fprintln(a.Out, strings.Join(append([]string{image.ID}, image.Names...), " "))
	}
	return nil
}

func tagCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:               "tag IMAGE NAME",
		Short:             "Give an image one more name",
		Long:              "Give an image one more name. If another image has the name, that image loses it.",
		Args:              command.Arguments(cobra.ExactArgs(2)),
		ValidArgsFunction: a.Complete(1, command.ImageNames),
		RunE: a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
			response, err := conn.Pulls.Tag(ctx, &berthv1.TagRequest{Image: args[0], Name: args[1]})
			if err != nil {
				return explain(ctx, conn, err, args[0])
			}
			fmt.Fprintln(a.Out, response.GetName())
			return nil
		}),
	}
}

// pinCommand is pin, and unpin where pinned is false.
func pinCommand(a *command.App, use, short string, pinned bool) *cobra.Command {
	return &cobra.Command{
		Use:   use + " IMAGE...",
		Short: short,
		Long: short + `.
A kubelet that runs out of disk space removes images that no container uses, except pinned images. Images that the
daemon's configuration lists in image.pinned are always pinned, and berth unpin does not change that.`,
		Args:              command.Arguments(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.Complete(0, command.ImageNames),
		RunE: a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
			var errs []error
			for _, image := range args {
				if _, err := conn.Pulls.Pin(ctx, &berthv1.PinRequest{Image: image, Pinned: pinned}); err != nil {
					errs = append(errs, explain(ctx, conn, err, image))
					continue
				}
				fmt.Fprintln(a.Out, image)
			}
			return errors.Join(errs...)
		}),
	}
}
