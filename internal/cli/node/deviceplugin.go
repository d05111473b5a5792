package node

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/table"
	"berth/internal/device/plugin"
)

func devicePluginCommand(a *command.App) *cobra.Command {
	var (
		file, dir    string
		check, print bool
	)
	cmd := &cobra.Command{
		Use:   "device-plugin",
		Short: "Offer devices of this machine to its kubelet",
		Long: `Offer device nodes and CDI devices of this machine to its kubelet, or to berthd where its device manager is on.
A configuration file lists the devices. The command waits for a kubelet, and runs until somebody ends it or a kubelet
refuses its registration. The systemd unit berth-device-plugin.service runs this command.`,
		Example: `  berth device-plugin --default-config >device-plugin.toml      # then edit it: as it is, it offers nothing
  berth device-plugin --check --config device-plugin.toml`,
		Args: command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Format != table.Table && !check {
				return command.Usage(cmd, errors.New("-o is only for --check"))
			}
			if print {
				_, err := a.Out.Write(plugin.DefaultFile())
				return err
			}
			cfg, err := plugin.Load(file)
			if err != nil {
				return command.FileError(err)
			}
			if dir != "" {
				cfg.Dir = dir
			}
			if check {
				return checkDevicePlugin(a, cfg)
			}
			return plugin.Run(cmd.Context(), cfg, plugin.Options{
				Log:   slog.New(slog.NewTextHandler(a.Err, nil)),
				Ready: func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) },
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "config", plugin.DefaultPath, "configuration file that lists the devices")
	flags.StringVar(&dir, "plugin-dir", "", "directory of the kubelet's socket, in place of the file's plugin_dir")
	flags.BoolVar(&check, "check", false, "check the file, list the devices that it offers at this moment, and exit")
	flags.BoolVar(&print, "default-config", false, "print a configuration file that explains each key, and exit")
	cmd.MarkFlagsMutuallyExclusive("check", "default-config")
	a.Output(cmd)
	return cmd
}

func checkDevicePlugin(a *command.App, cfg *plugin.Config) error {
	devices, problems := plugin.Check(cfg)
	for _, problem := range problems {
		fmt.Fprintf(a.Err, "warning: %s\n", problem)
	}
	return table.Print(a.Out, a.Format, devices, []table.Column[plugin.Device]{
		{Title: "RESOURCE", Value: func(d plugin.Device) string { return d.Resource }},
		{Title: "DEVICE", Value: func(d plugin.Device) string { return d.ID }},
		{Title: "HEALTH", Value: func(d plugin.Device) string {
			if d.Healthy {
				return "healthy"
			}
			return "unhealthy"
		}},
		{Title: "NUMA", Value: func(d plugin.Device) string { return numbers(d.NUMA) }},
		{Title: "SHARES", Value: func(d plugin.Device) string { return fmt.Sprint(d.Shares) }},
		{Title: "NODES", Wide: true, Value: func(d plugin.Device) string { return strings.Join(d.Nodes, ", ") }},
		{Title: "CDI", Wide: true, Value: func(d plugin.Device) string { return d.CDI }},
	})
}

// numbers are joined by commas.
func numbers(list []int64) string {
	text := make([]string, len(list))
	for i, n := range list {
		text[i] = fmt.Sprint(n)
	}
	return strings.Join(text, ",")
}
