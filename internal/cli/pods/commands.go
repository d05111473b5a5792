// Package pods has the commands of `berth` for pods and their containers.
package pods

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/command"
)

// Commands are the commands in the order of `berth --help`.
func Commands(a *command.App) []*cobra.Command {
	return []*cobra.Command{
		runCommand(a), applyCommand(a), downCommand(a), psCommand(a), podsCommand(a), logsCommand(a),
		execCommand(a), attachCommand(a), cpCommand(a), portForwardCommand(a), statsCommand(a), inspectCommand(a),
		timelineCommand(a), pauseCommand(a), unpauseCommand(a), killCommand(a), waitCommand(a),
		checkpointCommand(a), stopCommand(a), restartCommand(a), rmCommand(a), pruneCommand(a),
	}
}
