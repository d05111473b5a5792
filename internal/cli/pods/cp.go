package pods

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/filecopy"
)

func cpCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files between containers and this machine",
		Long: `Copy a file, or a directory with all that is in it, between a running container and this machine, or between
two containers. A place in a container is POD[/CONTAINER]:PATH. A path of this machine that has a colon begins with /
or a dot. The image needs no tar: the command reads and writes the container's files itself, and so has to run as root
on the node of the container.

A directory that exists takes the source under the source's name. A source that ends with /. is only the content of
the directory. Symbolic links of a container, and "..", never lead out of the container. Links in a directory are copied
as links, and holes of sparse files as holes. Files that are new in a container belong to the user of its main process;
a setuid bit is not copied.
Devices, sockets and file systems such as /proc are skipped, and the exit code is then 1.`,
		Example: `  berth cp hello/web:/etc/passwd passwd.hello
  berth cp passwd.hello hello:/srv/`,
		Args:              command.Arguments(cobra.ExactArgs(2)),
		ValidArgsFunction: a.Complete(1, command.ContainerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			var places [2]filecopy.Place
			for i, text := range args {
				place, err := filecopy.ParsePlace(text)
				if err != nil {
					return command.Usage(cmd, err)
				}
				places[i] = place
			}
			if places[0].Container == "" && places[1].Container == "" {
				return command.Usage(cmd, fmt.Errorf("neither %s nor %s is in a container", args[0], args[1]))
			}
			return a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
				var trees [2]*filecopy.Tree
				for i, place := range places {
					tree, err := tree(ctx, a, conn, place)
					if err != nil {
						return fmt.Errorf("%s: %w", place, err)
					}
					defer tree.Close()
					trees[i] = tree
				}
				err := filecopy.Copy(ctx, trees[0], places[0].Path, trees[1], places[1].Path, func(path, why string) {
					fmt.Fprintf(a.Err, "skipped %s: %s\n", path, why)
				})
				if err != nil {
					return fmt.Errorf("copy %s to %s: %w", places[0], places[1], err)
				}
				return nil
			})(cmd, args)
		},
	}
}

// tree opens the file system of a place.
func tree(ctx context.Context, a *command.App, conn *connection.Connection,
	place filecopy.Place) (*filecopy.Tree, error) {
	if place.Container == "" {
		return filecopy.Here(), nil
	}
	c, err := runningContainer(ctx, a, conn, place.Container, "")
	if err != nil {
		return nil, err
	}
	return filecopy.Container(ctx, conn.Runtime, c.Id)
}
