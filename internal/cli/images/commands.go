// Package images has the commands of `berth` for images, registries and archives.
package images

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/command"
)

// Commands are the commands in the order of `berth --help`.
func Commands(a *command.App) []*cobra.Command {
	return []*cobra.Command{
		imagesCommand(a), pullCommand(a), loadCommand(a), saveCommand(a), pushCommand(a), loginCommand(a),
		logoutCommand(a), tagCommand(a),
		pinCommand(a, "pin", "Pin images, so that a kubelet does not remove them", true),
		pinCommand(a, "unpin", "Unpin images, so that a kubelet may remove them again", false), rmiCommand(a),
	}
}
