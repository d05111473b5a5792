package pods

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/filecopy"
	"berth/internal/cli/streaming"
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
Devices, sockets and file systems such as /proc are skipped, and the exit code is then 1.

In place of a path of this machine, - is a tar archive on standard output, or on standard input, whose entries a
directory of the container takes. Its owners do not count, and setuid bits neither. In an archive, holes are zeros. A
file with the name - is ./-.`,
		Example: `  berth cp hello/web:/etc/passwd passwd.hello
  berth cp passwd.hello hello:/srv/
  berth cp hello:/srv/. - | zstd > srv.tar.zst
  zstd -dc srv.tar.zst | berth cp - hello:/srv`,
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
			if args[0] == stream || args[1] == stream {
				return copyStream(a, cmd, places)
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
				err := filecopy.Copy(ctx, trees[0], places[0].Path, trees[1], places[1].Path, skipped(a))
				if err != nil {
					return fmt.Errorf("copy %s to %s: %w", places[0], places[1], err)
				}
				return nil
			})(cmd, args)
		},
	}
}

// stream stands for a tar archive on standard input or output in place of files.
const stream = "-"

// copyStream writes files of a container to standard output as a tar archive, or has the container take those of an
// archive on standard input.
func copyStream(a *command.App, cmd *cobra.Command, places [2]filecopy.Place) error {
	in := places[1].Container != ""
	switch out, ok := a.Out.(*os.File); {
	case in && streaming.IsTerminal(a.In):
		return command.Usage(cmd, errors.New("- is a tar archive on standard input, and that is a terminal: "+
			"redirect it, or write ./- for a file of this name"))
	case !in && ok && streaming.IsTerminal(out):
		return command.Usage(cmd, errors.New("- is a tar archive, which is not written to a terminal: "+
			"redirect standard output, or write ./- for a file of this name"))
	}
	return a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
		if in {
			to, err := tree(ctx, a, conn, places[1])
			if err != nil {
				return fmt.Errorf("%s: %w", places[1], err)
			}
			defer to.Close()
			if err := filecopy.ReadTar(ctx, a.Input(ctx), to, places[1].Path, skipped(a)); err != nil {
				return fmt.Errorf("copy an archive to %s: %w", places[1], err)
			}
			return nil
		}
		from, err := tree(ctx, a, conn, places[0])
		if err != nil {
			return fmt.Errorf("%s: %w", places[0], err)
		}
		defer from.Close()
		if err := filecopy.WriteTar(ctx, from, places[0].Path, a.Out, skipped(a)); err != nil {
			return fmt.Errorf("copy %s to an archive: %w", places[0], err)
		}
		return nil
	})(cmd, nil)
}

// skipped tells what is not copied.
func skipped(a *command.App) func(path, why string) {
	return func(path, why string) { fmt.Fprintf(a.Err, "skipped %s: %s\n", path, why) }
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
