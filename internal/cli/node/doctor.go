package node

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/findings"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
	"berth/internal/doctor"
)

func doctorCommand(a *command.App) *cobra.Command {
	var root, state, cniConfDir string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine has what Berth needs",
		Long: `Check whether this machine has what Berth needs, and say how to fix each problem. The check works without a
running daemon. If a daemon runs, its version, its directories, its keeper and its configuration are checked too.
The exit code is 1 if pods cannot run.`,
		Args: command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			socket, err := connection.SocketPath(a.Address)
			if err != nil {
				return command.Usage(cmd, err)
			}
			running := findings.AskDaemon(cmd.Context(), socket)
			// What is given as a flag is what the user wants to know of.
			given := doctor.Given{Root: cmd.Flags().Changed("root"), State: cmd.Flags().Changed("state"),
				CNIConfDir: cmd.Flags().Changed("cni-conf-dir")}
			found := doctor.Examine(cmd.Context(), doctor.Config{
				Version: a.Version, Socket: socket, Root: root, State: state, CNI: doctor.CNI{CNIConfDir: cniConfDir}, Given: given,
				ContainerdVersion: connection.ContainerdVersion, Daemon: running,
			})
			failed := false
			for _, f := range found {
				failed = failed || f.Level == doctor.Bad
			}
			if a.Format.Structured() {
				if err := table.Document(a.Out, a.Format, found); err != nil {
					return err
				}
			} else if err := findings.Print(a.Out, command.Columns(a.Out), command.Colored(a.Out), found); err != nil {
				return err
			}
			if failed {
				return &streaming.ExitError{Code: command.ExitError}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", "/var/lib/berth", "the daemon's directory for data")
	cmd.Flags().StringVar(&state, "state", "/run/berth", "the daemon's directory for files that a reboot may remove")
	cmd.Flags().StringVar(&cniConfDir, "cni-conf-dir", "/etc/cni/net.d", "the daemon's directory of CNI configurations")
	a.Structured(cmd)
	return cmd
}
