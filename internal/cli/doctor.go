package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
	"berth/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	var root, state, cniConfDir string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine has what Berth needs",
		Long: `Check whether this machine has what Berth needs, and say what to do about what it lacks. No daemon need run;
one that does is asked for its directories and its keeper, and has its configuration checked.
The exit code is 1 if pods cannot run.`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			socket, err := connection.SocketPath(a.address)
			if err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			running := a.askDaemon(cmd.Context(), socket)
			if running != nil {
				// What is given as a flag is what the user wants to know of.
				for name, own := range map[string]*string{
					"root": &running.Root, "state": &running.State, "cni-conf-dir": &running.CNIConfDir,
				} {
					if cmd.Flags().Changed(name) {
						*own = ""
					}
				}
			}
			findings := doctor.Examine(cmd.Context(), doctor.Config{
				Socket: socket, Root: root, State: state, CNIConfDir: cniConfDir,
				ContainerdVersion: connection.ContainerdVersion, Daemon: running,
			})
			failed := false
			for _, f := range findings {
				failed = failed || f.Level == doctor.Bad
			}
			if a.format.Structured() {
				if err := table.Document(a.out, a.format, findings); err != nil {
					return err
				}
			} else if err := a.printFindings(findings); err != nil {
				return err
			}
			if failed {
				return &streaming.ExitError{Code: exitError}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", "/var/lib/berth", "the daemon's directory for data")
	cmd.Flags().StringVar(&state, "state", "/run/berth", "the daemon's directory for what a reboot may lose")
	cmd.Flags().StringVar(&cniConfDir, "cni-conf-dir", "/etc/cni/net.d", "the daemon's directory of CNI configurations")
	a.output(cmd)
	return cmd
}

// askWait bounds how long the daemon may take to tell of itself: where it hangs the other checks are of use.
const askWait = 10 * time.Second

// askDaemon is what the daemon says of itself; nil: none answers.
func (a *app) askDaemon(ctx context.Context, socket string) *doctor.Daemon {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	conn, err := connection.Dial(ctx, socket)
	if err != nil {
		return nil
	}
	defer conn.Close()
	status, err := conn.Runtime.Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return nil
	}
	var (
		d      doctor.Daemon
		config struct {
			Root, State string
			Network     struct{ CNIConfDir string }
		}
		keeper struct{ Version string }
	)
	for key, to := range map[string]any{"version": &d.Version, "config": &config, "keeper": &keeper} {
		if text := status.Info[key]; text != "" && json.Unmarshal([]byte(text), to) != nil {
			return nil // another runtime's
		}
	}
	if d.Version == "" {
		return nil
	}
	d.KeeperVersion, d.Root, d.State = keeper.Version, config.Root, config.State
	d.CNIConfDir = config.Network.CNIConfDir
	d.PID = connection.PeerPID(ctx, socket)
	if made, err := conn.Runtime.RuntimeConfig(ctx, &cri.RuntimeConfigRequest{}); err == nil {
		d.CgroupDriver = strings.ToLower(made.GetLinux().GetCgroupDriver().String())
	}
	return &d
}

func (a *app) printFindings(findings []doctor.Finding) error {
	marks := map[doctor.Level]string{doctor.Good: "ok  ", doctor.Poor: "warn", doctor.Bad: "FAIL"}
	tints := map[doctor.Level]int{doctor.Good: 32, doctor.Poor: 33, doctor.Bad: 31}
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Subject))
	}
	for _, f := range findings {
		mark := marks[f.Level]
		if colored(a.out) {
			mark = fmt.Sprintf("\x1b[%dm%s\x1b[0m", tints[f.Level], mark)
		}
		if _, err := fmt.Fprintf(a.out, "%s  %-*s  %s\n", mark, width, f.Subject, f.Detail); err != nil {
			return err
		}
		for line := range strings.Lines(f.Advice) {
			if _, err := fmt.Fprintf(a.out, "      %-*s  -> %s\n", width, "", strings.TrimSuffix(line, "\n")); err != nil {
				return err
			}
		}
	}
	return nil
}
