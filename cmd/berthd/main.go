// Command berthd is the daemon: it answers the Container Runtime Interface.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/config"
	"berth/internal/config/check"
	"berth/internal/image/registry"
	_ "berth/internal/timerslack" // before all other packages are initialized
)

// version is set by the build.
var version = "0.1.0-dev"

func main() {
	// A reader of the log that goes away must not end the daemon. Not ignored but caught: what is ignored stays
	// so in children.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	// Users of containers have to reach the root file systems and the files of pods, whoever has started the daemon. What
	// is for root alone is made so.
	unix.Umask(0o022)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berthd:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var sources config.Sources
	root := &cobra.Command{
		Use:           "berthd",
		Short:         "The Berth container runtime: serves the CRI to kubelets",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&sources.File,
		"config", "", "configuration file (default "+config.DefaultPath+", if it exists)")
	root.PersistentFlags().StringVar(&sources.Dir, "config-dir", "",
		"directory whose *.toml files are read over it (default "+config.DropIns+" beside the file, if it exists)")
	sources.Overrides = config.Bind(root.PersistentFlags())
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		s := catchSignals()
		cfg, err := config.Load(sources)
		if err != nil {
			return err
		}
		return run(cmd.Context(), sources, cfg, s)
	}
	root.AddCommand(configCommand(&sources))
	return root
}

// configCommand has the commands that print and check the configuration. sources is set when one of them is executed.
func configCommand(sources *config.Sources) *cobra.Command {
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
		Short: "Check the configuration: say what is wrong with it, and what of it cannot work on this node",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				sources.File = args[0]
			}
			cfg, err := loadChecked(*sources)
			if err != nil {
				return err
			}
			text := "the configuration is good"
			for _, warning := range check.Warnings(cfg.Config) {
				text += "\nwarning: " + warning
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}, &cobra.Command{
		Use:   "registries",
		Short: "Ask each registry and mirror that has a hosts.toml whether it answers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(*sources)
			if err != nil {
				return err
			}
			hosts, err := registry.NewClient(registry.Config{
				HostsDir: cfg.HostsDir, Proxies: proxies(&cfg.Image), Logger: slog.New(slog.DiscardHandler),
			}).Reach(cmd.Context())
			if err != nil {
				return err
			}
			text := fmt.Sprintf("%d hosts of registries that have a hosts.toml in %s: all answer", hosts, cfg.HostsDir)
			if hosts == 0 {
				text = "no registry has a hosts.toml in " + cfg.HostsDir
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}, &cobra.Command{
		Use:   "dump",
		Short: "Print what files and flags come to, and where each key comes from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(*sources)
			if err != nil {
				return err
			}
			return cfg.Dump(cmd.OutOrStdout())
		},
	})
	return group
}

// loadChecked reads a configuration, and refuses one that cannot work on this node.
func loadChecked(sources config.Sources) (*config.Loaded, error) {
	cfg, err := config.Load(sources)
	if err != nil {
		return nil, err
	}
	return cfg, cfg.Locate(check.Node(cfg.Config))
}
