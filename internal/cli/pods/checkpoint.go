package pods

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

func checkpointCommand(a *command.App) *cobra.Command {
	var file string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "checkpoint CONTAINER -o FILE",
		Short: "Write a running container to an archive",
		Long: `Write a running container to an archive: its memory, and what it has written to its root file system.
The container is frozen while the archive is written, and then continues. To restore it, run a manifest that names
the archive's path as the image of a container.

The daemon writes the file, on the machine on which it runs. It needs criu.`,
		Example: "  berth checkpoint hello/web -o /var/tmp/web.tar",
		Args: command.Arguments(func(cmd *cobra.Command, args []string) error {
			switch {
			case file == "":
				return errors.New("no archive is given: give its file with -o")
			case timeout < 0 || timeout > 0 && timeout < time.Second:
				return errors.New("--timeout is at least a second, such as 30s; 0 is ten minutes")
			}
			return cobra.ExactArgs(1)(cmd, args)
		}),
		ValidArgsFunction: a.Complete(1, command.ContainerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			path, err := filepath.Abs(file)
			if err != nil {
				return err
			}
			conn, err := a.Dial(ctx)
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
			fmt.Fprintln(a.Out, path)
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "the archive's `file`; an existing file is replaced")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long the checkpoint may take; 0: ten minutes")
	_ = cmd.MarkFlagFilename("output", "tar")
	return cmd
}
