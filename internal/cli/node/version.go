package node

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/table"
)

type versions struct {
	Client  string          `json:"client"`
	Go      string          `json:"go"`
	Runtime *runtimeVersion `json:"runtime,omitempty"`
	Error   string          `json:"error,omitempty"` // why the runtime's is not known
}

type runtimeVersion struct {
	Name       string `json:"name"`
	Version    string `json:"version"`
	APIVersion string `json:"apiVersion"`
	Address    string `json:"address"`
}

func versionCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this command and of the runtime",
		Args:  command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: a.Version, Go: runtime.Version()}
			err := askVersion(a, cmd, &v)
			if err != nil {
				v.Error = connection.Message(err)
			}
			if a.Format.Structured() {
				return errors.Join(table.Document(a.Out, a.Format, v), err)
			}
			fmt.Fprintf(a.Out, "berth    %s (%s)\n", v.Client, v.Go)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Out, "runtime  %s %s, CRI %s, at %s\n", v.Runtime.Name, v.Runtime.Version,
				v.Runtime.APIVersion, v.Runtime.Address)
			return err
		},
	}
	a.Structured(cmd)
	return cmd
}

func askVersion(a *command.App, cmd *cobra.Command, v *versions) error {
	conn, err := a.Dial(cmd.Context())
	if err != nil {
		return err
	}
	defer conn.Close()
	response, err := conn.Runtime.Version(cmd.Context(), &cri.VersionRequest{Version: "v1"})
	if err != nil {
		return err
	}
	v.Runtime = &runtimeVersion{response.GetRuntimeName(), response.GetRuntimeVersion(),
		response.GetRuntimeApiVersion(), conn.Address}
	return nil
}
