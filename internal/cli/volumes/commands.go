// Package volumes has the command of `berth` for named volumes.
package volumes

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/command"
)

// Commands are the commands in the order of `berth --help`.
func Commands(a *command.App) []*cobra.Command {
	return []*cobra.Command{volumeCommand(a)}
}
