package pods

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/play"
	"berth/internal/manifest"
)

func downCommand(a *command.App) *cobra.Command {
	var files []string
	options := manifest.Options{IgnoreUnsupported: true} // whatever run was told
	cmd := &cobra.Command{
		Use:   "down FILE",
		Short: "Remove the pods that run or apply has made of a manifest",
		Long: `Stop and remove the pods that "berth run -d" has made of a manifest, whatever names they were given. The
volumes of PersistentVolumeClaims stay: berth volume rm removes them. It is no error if none of the pods is there.

If FILE is a directory, the pods that "berth apply" has made of it are removed as well, also those whose file is wrong
or gone. While that command runs, nothing is removed, since it would start the pods again.`,
		Example: "  berth down examples/hello.yaml",
		Args:    command.Arguments(oneManifest(&files)),
		RunE: func(cmd *cobra.Command, args []string) error {
			names := append(files, args...)
			directories, err := play.Directories(names)
			if err != nil {
				return err
			}
			documents, wrong := play.Read(names, a.Input(cmd.Context()), options)
			conn, err := a.Dial(cmd.Context())
			if err != nil {
				return errors.Join(wrong, err)
			}
			defer conn.Close()
			downer := &play.Downer{Conn: conn, Store: a.Store(conn), Out: a.Out}
			if wrong != nil { // what apply has made is known without the files
				kept, err := downer.Kept(cmd.Context(), directories)
				if err != nil || !kept {
					return errors.Join(wrong, err)
				}
				fmt.Fprintf(a.Err, "warning: %v\n", wrong)
				documents = &manifest.Documents{}
			}
			return downer.Down(cmd.Context(), documents, directories)
		},
	}
	manifestFlags(cmd, &files, &options)
	return cmd
}
