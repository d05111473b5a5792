package images

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/credentials"
	"berth/internal/cli/progress"
	"berth/internal/cli/table"
)

// pushedRow is an image at a registry.
type pushedRow struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

func pushCommand(a *command.App) *cobra.Command {
	var auth credentials.Flags
	var quiet bool
	cmd := &cobra.Command{
		Use:   "push IMAGE [NAME]",
		Short: "Push an image to a registry",
		Long: `Push an image to the registry of its name, or under another name. Layers that the registry already has, also in
a repository that the image was pulled from, are not sent.

If the registry has all layers as they were pulled, the image gets the same digest there. Otherwise the missing layers
are made from the node's files and compressed by gzip, and the manifest and its digest are new. The image's ID is the
same in both cases.`,
		Example: `  berth push registry.example/web:2
  berth push docker.io/library/busybox:1.36 registry.example/mirror/busybox:1.36`,
		Args:              command.Arguments(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: a.Complete(1, command.ImageNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := auth.Read(a.Input(cmd.Context())); err != nil {
				return command.Usage(cmd, err)
			}
			conn, err := a.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			report := a.RawErr
			if quiet || a.Format.Structured() {
				report = io.Discard
			}
			request := &berthv1.PushRequest{Image: args[0]}
			to := args[0]
			if len(args) > 1 {
				request.Name, to = args[1], args[1]
			}
			found, err := auth.Find(cmd.Context(), to)
			if err != nil {
				return err
			}
			request.Auth = credentials.Own(found)
			pushed, err := push(cmd.Context(), conn, request, report)
			if err != nil {
				return explain(cmd.Context(), conn, err, args[0])
			}
			if a.Format.Structured() {
				return table.Document(a.Out, a.Format, pushed)
			}
			_, err = fmt.Fprintln(a.Out, pushed.Digest)
			return err
		},
	}
	auth.Add(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress, only the digest of the image at the registry")
	a.Structured(cmd)
	return cmd
}

// push pushes an image and shows how far it is on w.
func push(ctx context.Context, conn *connection.Connection, request *berthv1.PushRequest,
	w io.Writer) (*pushedRow, error) {
	show := progress.New(ctx, w, progress.Push)
	what := request.GetImage()
	if as := request.GetName(); as != "" {
		what += " as " + as
	}
	fmt.Fprintf(w, "pushing %s\n", what)
	stream, err := conn.Pulls.Push(ctx, request)
	if err != nil {
		show.End(false)
		return nil, connection.Plain(err)
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			show.End(false)
			return nil, connection.Plain(err)
		}
		if layer := event.GetLayer(); layer != nil {
			show.Layer(layer)
		}
		if pushed := event.GetPushed(); pushed != nil {
			show.End(true)
			return &pushedRow{Name: pushed.GetName(), Digest: pushed.GetDigest()}, nil
		}
	}
}
