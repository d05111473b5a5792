// Package node has the commands of `berth` for the runtime and the machine.
package node

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/command"
)

// Commands are the commands in the order of `berth --help`.
func Commands(a *command.App) []*cobra.Command {
	return []*cobra.Command{
		dashboardCommand(a), eventsCommand(a), systemCommand(a), devicesCommand(a), devicePluginCommand(a),
		doctorCommand(a), bundleCommand(a), migrateCommand(a), versionCommand(a),
	}
}
