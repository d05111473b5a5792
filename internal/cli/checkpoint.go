package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

func (a *app) checkpointCommand() *cobra.Command {
	var file string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "checkpoint CONTAINER -o FILE",
		Short: "Write a running container to an archive",
		Long: `Write a running container to an archive: its memory, and what it has written to its root file system.
It stands still meanwhile and goes on then. A manifest that names the archive's path as a container's image makes
a container that goes on from there.

The runtime writes the file, on its own machine. It needs criu.`,
		Example: "  berth checkpoint hello/web -o /var/tmp/web.tar",
		Args: arguments(func(cmd *cobra.Command, args []string) error {
			switch {
			case file == "":
				return errors.New("name the archive with -o")
			case timeout < 0 || timeout > 0 && timeout < time.Second:
				return errors.New("--timeout: seconds, such as 30s")
			}
			return cobra.ExactArgs(1)(cmd, args)
		}),
		ValidArgsFunction: a.complete(1, containerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			path, err := filepath.Abs(file)
			if err != nil {
				return err
			}
			conn, err := a.dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			container, err := lookup.FindContainer(ctx, conn.Runtime, args[0])
			if err != nil {
				return err
			}
			_, err = conn.Runtime.CheckpointContainer(ctx, &cri.CheckpointContainerRequest{
				ContainerId: container.Id, Location: path, Timeout: int64(timeout / time.Second),
			})
			if err != nil {
				return connection.Plain(err)
			}
			fmt.Fprintln(a.out, path)
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "the archive's `file`; one that is there is replaced")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long it may take; 0: ten minutes")
	_ = cmd.MarkFlagFilename("output", "tar")
	return cmd
}
