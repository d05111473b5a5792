// Command berthd is the daemon: it answers the Container Runtime Interface.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/config"
)

// version is set by the build.
var version = "0.1.0-dev"

func main() {
	// A reader of the log that goes away must not end the daemon. Not ignored but caught: what is ignored stays
	// so in children.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berthd:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var path string
	root := &cobra.Command{
		Use:           "berthd",
		Short:         "The Berth container runtime: serves the CRI to kubelets",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&path,
		"config", "", "configuration file (default "+config.DefaultPath+", if it exists)")
	overrides := config.Bind(root.PersistentFlags())
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(path, overrides)
		if err != nil {
			return err
		}
		return run(cmd.Context(), cfg)
	}

	group := &cobra.Command{Use: "config", Short: "Print and check the configuration", Args: cobra.NoArgs}
	group.AddCommand(&cobra.Command{
		Use:   "default",
		Short: "Print the default configuration, with what each key means",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.DefaultFile())
			return err
		},
	}, &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file, and say what is wrong with it",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				path = args[0]
			}
			cfg, err := config.Load(path, overrides)
			if err != nil {
				return err
			}
			if _, err := handlers(cfg, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "the configuration is good")
			return err
		},
	})
	root.AddCommand(group)
	return root
}
