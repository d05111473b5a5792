package node

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/dashboard"
)

func dashboardCommand(a *command.App) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a page that shows what runs here to a local browser",
		Long: `Serve a page that shows what runs on this node to a browser on this machine, until Ctrl-C: pods and
containers with what they use, their logs and timelines, images, volumes, devices, events and disk space. The page
changes nothing.

It is served on the loopback only. The address that the command prints has a secret in it, without which nothing is
shown. A new run has another secret.`,
		Example: "  berth dashboard --listen 127.0.0.1:8080",
		Args:    command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := dashboard.ParseAddress(listen)
			if err != nil {
				return command.Usage(cmd, fmt.Errorf("--listen: %w", err))
			}
			return a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
				listener, err := dashboard.Listen(ctx, address)
				if err != nil {
					return fmt.Errorf("serve the dashboard: %w", err)
				}
				server := dashboard.New(conn, a.Version)
				fmt.Fprintf(a.Err, "The dashboard of %s is served until Ctrl-C. Open in a browser on this machine:\n", conn.Address)
				fmt.Fprintln(a.Out, server.URL(listener))
				return server.Serve(ctx, listener)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", dashboard.DefaultAddress,
		"address and port on the loopback; port 0 is any that is free")
	return cmd
}
