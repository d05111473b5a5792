package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/credentials"
	"berth/internal/cli/progress"
	"berth/internal/cli/table"
)

// pulled is the report of a pull.
type pulled struct {
	Image string        `json:"image"`
	ID    string        `json:"id"`
	Took  time.Duration `json:"nanoseconds"`
}

func pullCommand(a *command.App) *cobra.Command {
	var auth credentials.Flags
	var quiet bool
	var platform string
	var every bool
	cmd := &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "Pull images from their registries",
		Args:  command.Arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every {
				return command.Usage(cmd, errEveryPlatform)
			}
			if err := checkPlatform(platform); err != nil {
				return command.Usage(cmd, err)
			}
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
			all := []pulled{}
			var errs []error
			for _, image := range args {
				begin := time.Now()
				id, err := Pull(cmd.Context(), a, conn, image, &auth, report)
				if err != nil {
					errs = append(errs, named("pull "+image, err))
					if cmd.Context().Err() != nil {
						return err
					}
					continue
				}
				all = append(all, pulled{image, id, time.Since(begin)})
				if !a.Format.Structured() {
					fmt.Fprintln(a.Out, id)
				}
			}
			if a.Format.Structured() {
				errs = append(errs, table.Document(a.Out, a.Format, all))
			}
			return errors.Join(errs...)
		},
	}
	auth.Add(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress, only the image's ID")
	cmd.Flags().StringVar(&platform, "platform", "",
		"fail unless this is the node's platform, `OS/ARCHITECTURE`: no others are pulled")
	// Other tools have this flag. That it is not known would not say why.
	cmd.Flags().BoolVar(&every, "all-platforms", false, "")
	_ = cmd.Flags().MarkHidden("all-platforms")
	a.Structured(cmd)
	return cmd
}

// Pull pulls an image and shows how far it is on w: bars where w is a terminal, a line a layer elsewhere.
func Pull(ctx context.Context, a *command.App, conn *connection.Connection, image string, auth *credentials.Flags,
	w io.Writer) (string, error) {
	found, err := auth.Find(ctx, image)
	if err != nil {
		return "", err
	}
	request := &berthv1.PullRequest{Image: image, Auth: credentials.Own(found)}
	show := progress.New(ctx, w, progress.Pull)
	fmt.Fprintf(w, "pulling %s\n", image)
	stream, err := conn.Pulls.Pull(ctx, request)
	if err != nil {
		show.End(false)
		return "", connection.Plain(err)
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			show.End(false)
			if connection.Code(err) == codes.Unimplemented {
				// Another runtime than Berth: it pulls, but cannot say how far it is.
				response, err := conn.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}, Auth: found})
				return response.GetImageRef(), connection.Plain(err)
			}
			return "", connection.Plain(err)
		}
		if layer := event.GetLayer(); layer != nil {
			show.Layer(layer)
		}
		if done := event.GetDone(); done != nil {
			show.End(true)
			return done.GetImageRef(), nil
		}
	}
}

// named says what has failed before the reason, unless the runtime's own words begin with it.
func named(what string, err error) error {
	if strings.HasPrefix(connection.Message(err), what) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}
