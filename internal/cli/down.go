package cli

import (
	"github.com/spf13/cobra"

	"berth/internal/cli/play"
	"berth/internal/manifest"
)

func (a *app) downCommand() *cobra.Command {
	var files []string
	options := manifest.Options{IgnoreUnsupported: true} // whatever run was told
	cmd := &cobra.Command{
		Use:   "down FILE",
		Short: "Remove the pods that run has made of a manifest",
		Long: `Stop and remove the pods that "berth run -d" has made of a manifest, whatever names they were given. The
volumes of PersistentVolumeClaims stay: berth volume rm removes them. It is no error if none of the pods is there.`,
		Example: "  berth down examples/hello.yaml",
		Args:    arguments(oneManifest(&files)),
		RunE: func(cmd *cobra.Command, args []string) error {
			documents, err := play.Read(append(files, args...), a.in, options)
			if err != nil {
				return err
			}
			conn, err := a.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			return play.Down(cmd.Context(), conn, a.store(conn), documents, a.out)
		},
	}
	manifestFlags(cmd, &files, &options)
	return cmd
}
