package node

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/cli/bundle"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
)

func bundleCommand(a *command.App) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write an archive with what a bug report needs",
		Long: `Write an archive with what a bug report needs: what doctor finds, the daemon's and the keeper's logs,
the configuration, the states and timelines of pods and containers, goroutines, and facts of the kernel and its cgroups.

Values of environment variables, annotations, labels, commands, credentials and the output of containers are left out.
The archive has names of pods and images, and paths. The logs are not changed: read them before you give the archive to
somebody else.`,
		Args: command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				file = "berth-bundle-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			socket, err := connection.SocketPath(a.Address)
			if err != nil {
				return command.Usage(cmd, err)
			}
			out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			missing, err := bundle.Write(cmd.Context(), a.Version, socket, out)
			if err = errors.Join(err, out.Close()); err != nil {
				return errors.Join(err, os.Remove(file))
			}
			for _, m := range missing {
				fmt.Fprintln(a.Err, "not in it:", m)
			}
			_, err = fmt.Fprintln(a.Out, file)
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "the archive's `file`, which must not exist yet")
	_ = cmd.MarkFlagFilename("output", "gz")
	return cmd
}
