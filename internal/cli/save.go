package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
	"berth/internal/cli/streaming"
)

func (a *app) saveCommand() *cobra.Command {
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
		Args:              arguments(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.complete(0, imageNames),
		RunE: a.connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
			if file != "" && file != "-" {
				return saveFile(ctx, conn.Pulls, args, file)
			}
			if f, ok := a.out.(*os.File); ok && streaming.IsTerminal(f) {
				return errors.New("the archive is not written to a terminal: give a file with -o, or redirect standard output")
			}
			return save(ctx, conn.Pulls, args, a.out)
		}),
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "the archive; - is standard output")
	_ = cmd.MarkFlagFilename("output")
	return cmd
}

// saveFile writes an archive whole or not at all. What is no regular file, a pipe or a device, is written as it is.
func saveFile(ctx context.Context, images berthv1.ImagesClient, names []string, path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(save(ctx, images, names, f), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	err = errors.Join(save(ctx, images, names, f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// save receives an archive.
func save(ctx context.Context, images berthv1.ImagesClient, names []string, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := images.Save(ctx, &berthv1.SaveRequest{Images: names})
	if err != nil {
		return connection.Plain(err)
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return connection.Plain(err)
		}
		if _, err := out.Write(message.GetData()); err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
	}
}
