package node

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/migration"
	"berth/internal/cli/streaming"
	"berth/internal/migrate"
)

func migrateCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Move this node from containerd or CRI-O to Berth, or back",
		Args:  command.Arguments(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	fromContainerd := migration.Migration{Runtime: migration.Containerd}
	fromCRIO := migration.Migration{Runtime: migration.CRIO}
	containerd := &cobra.Command{
		Use:   "containerd",
		Short: "Take over containerd's configuration and images",
		Long: `Translate containerd's configuration into a file in config.d, beside Berth's own configuration, and its old
tables of registries into certs.d. The command lists the keys that it does not translate, with the reason for each. It
imports the images of containerd's content store, without the network.

containerd and its files are not changed. The command records what it writes, and --revert undoes all of it.

If berthd runs, it imports the images at once. Otherwise archives of the images are written to image.preload_dir, from
which berthd imports them when it starts, and then removes them. It does not matter whether containerd runs.`,
		Example: `  berth migrate containerd --dry-run
  berth migrate containerd
  berth migrate containerd --revert`,
		Args: command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runMigration(a, cmd, &fromContainerd) },
	}
	crio := &cobra.Command{
		Use:   "crio",
		Short: "Take over CRI-O's configuration and images",
		Long: `Translate CRI-O's configuration into a file in config.d, beside Berth's own configuration, and the mirrors of
registries.conf into certs.d, with the certificates of registries. The command lists the keys that it does not
translate, with the reason for each. It imports the images of CRI-O's store, without the network.

CRI-O and its files are not changed. The command records what it writes, and --revert undoes all of it.

If berthd runs, it imports the images at once. Otherwise archives of the images are written to image.preload_dir, from
which berthd imports them when it starts, and then removes them. These archives have uncompressed layers. It does not
matter whether CRI-O runs.`,
		Example: `  berth migrate crio --dry-run
  berth migrate crio
  berth migrate crio --revert`,
		Args: command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runMigration(a, cmd, &fromCRIO) },
	}
	for _, c := range []struct {
		cmd     *cobra.Command
		m       *migration.Migration
		file    string
		runtime string
	}{
		{containerd, &fromContainerd, migrate.ContainerdConfig, "containerd"},
		{crio, &fromCRIO, migrate.CRIOConfig, "CRI-O"},
	} {
		flags := c.cmd.Flags()
		flags.StringVar(&c.m.File, "config", c.file, c.runtime+"'s configuration")
		flags.StringVar(&c.m.Dir, "to", migrate.DefaultDir, "directory of Berth's configuration")
		flags.StringVar(&c.m.KubeletConfig, "kubelet-config", "",
			"a kubelet's configuration that gets Berth's socket; without it the commands for that are printed")
		flags.BoolVar(&c.m.DryRun, "dry-run", false, "write nothing, and print what would be written")
		flags.BoolVar(&c.m.Revert, "revert", false, "undo what an earlier run has written")
		flags.BoolVar(&c.m.NoImages, "no-images", false, "import no images")
		c.cmd.MarkFlagsMutuallyExclusive("dry-run", "revert")
	}
	containerd.Flags().StringVar(&fromContainerd.Root, "root", "",
		"containerd's root (by default as its configuration says)")
	crio.Flags().StringVar(&fromCRIO.Root, "root", "",
		"directory of CRI-O's images (by default as its configuration says)")
	crio.Flags().StringVar(&fromCRIO.Containers, "containers", "/etc/containers",
		"directory of registries.conf, policy.json and storage.conf")
	cmd.AddCommand(containerd, crio)
	return cmd
}

// runMigration does what the flags say. The address is the translated configuration's where none is given.
func runMigration(a *command.App, cmd *cobra.Command, m *migration.Migration) error {
	if cmd.Flags().Changed("address") || os.Getenv("BERTH_ADDRESS") != "" {
		m.Address = a.Address
	}
	if cmd.Flags().Changed("config") && !m.Revert {
		if err := checkFile(m); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
	}
	m.Out, m.Columns, m.Colored = a.Out, command.Columns(a.Out), command.Colored(a.Out)
	bad, err := m.Run(cmd.Context())
	if err == nil && bad {
		return &streaming.ExitError{Code: command.ExitError}
	}
	return err
}

// checkFile says whether the configuration that a flag names is there. The one by default need not be there: the other
// runtime has its own defaults then. CRI-O's may be in the directory beside the file alone.
func checkFile(m *migration.Migration) error {
	_, err := os.Stat(m.File)
	if err != nil && m.Runtime == migration.CRIO {
		if _, derr := os.Stat(m.File + ".d"); derr == nil {
			return nil
		}
	}
	return err
}
