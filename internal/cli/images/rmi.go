package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/space"
	"berth/internal/cli/table"
)

func rmiCommand(a *command.App) *cobra.Command {
	var unused bool
	var o command.Removal
	cmd := &cobra.Command{
		Use:   "rmi IMAGE...",
		Short: "Remove images",
		Long: `Remove images, by name or ID.
A name is only taken away from an image that has further ones. With the last one, and by its ID or a digest, the image
is removed, unless a container uses it.

With --unused, remove all images that no container uses. They are listed first, and removed once that is confirmed on
the terminal. -f removes them without asking, and --dry-run only lists them.`,
		Args: command.Arguments(func(_ *cobra.Command, args []string) error {
			switch {
			case unused == (len(args) > 0):
				return errors.New("name images, or give --unused")
			case !unused && (o.Dry || o.Force):
				return errors.New("--dry-run and --force are for --unused: named images are removed without a question")
			}
			return nil
		}),
		ValidArgsFunction: a.Complete(0, command.ImageNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !unused {
				return a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
					return removeNamed(ctx, a, conn, args)
				})(cmd, args)
			}
			if err := o.Check(a, cmd); err != nil {
				return err
			}
			return a.Connected(func(ctx context.Context, conn *connection.Connection, _ []string) error {
				return removeUnused(ctx, a, conn, &o)
			})(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&unused, "unused", false, "all images that no container uses, except pinned images")
	o.Add(cmd)
	return cmd
}

// removeNamed removes what it can of the images that are named.
func removeNamed(ctx context.Context, a *command.App, conn *connection.Connection, names []string) error {
	var errs []error
	for _, name := range names {
		taken, err := untag(ctx, conn, name)
		if err == nil && taken == "" {
			err = Remove(ctx, conn, name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", name, err))
			continue
		}
		if taken != "" {
			fmt.Fprintf(a.Err, "note: the image has further names: only %s is taken away\n", taken)
		}
		fmt.Fprintln(a.Out, name)
	}
	return errors.Join(errs...)
}

// removeUnused removes the images that no container uses, each with all of its names.
func removeUnused(ctx context.Context, a *command.App, conn *connection.Connection, o *command.Removal) error {
	containers, err := lookup.Containers(ctx, conn.Runtime, nil)
	if err != nil {
		return err
	}
	images, err := Unused(ctx, conn, containers)
	if err != nil {
		return err
	}
	var lines []string
	for _, image := range images {
		lines = append(lines, strings.Join(append([]string{image.GetId()}, image.GetRepoTags()...), " "))
	}
	if goOn, err := o.Confirm(ctx, a, lines); !goOn {
		return err
	}
	var errs []error
	for i, image := range images {
		if err := Remove(ctx, conn, image.GetId()); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", lines[i], err))
			continue
		}
		if o.Force {
			fmt.Fprintln(a.Out, lines[i])
		}
	}
	return errors.Join(errs...)
}

// untag takes a name away from an image that has others, and returns it in full; empty: this is not such a name.
func untag(ctx context.Context, conn *connection.Connection, name string) (string, error) {
	response, err := conn.Pulls.Untag(ctx, &berthv1.UntagRequest{Name: name})
	switch grpcstatus.Code(err) {
	// A digest or an ID, the last name, or one that nothing has.
	case codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound:
		return "", nil
	}
	return response.GetName(), connection.Plain(err)
}

// Remove removes an image that no container uses.
func Remove(ctx context.Context, conn *connection.Connection, name string) error {
	spec := &cri.ImageSpec{Image: name}
	status, err := conn.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
	if err != nil {
		return connection.Plain(err)
	}
	// The interface calls the removal of nothing a success; a person has mistyped.
	if status.GetImage() == nil {
		return NotFound(ctx, conn, name)
	}
	containers, err := lookup.Containers(ctx, conn.Runtime, nil)
	if err != nil {
		return err
	}
	uses, err := space.ReadUses(ctx, conn.Runtime, containers)
	if err != nil {
		return err
	}
	if c := uses.Of(status.GetImage()); c != nil {
		return fmt.Errorf("container %s (%s) uses it: remove that container first with `berth rm`", c.ShortName(),
			table.ShortID(c.Id))
	}
	_, err = conn.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: spec})
	return connection.Plain(err)
}

// Unused are the images that are neither pinned nor used by any of the containers.
func Unused(ctx context.Context, conn *connection.Connection, used []*lookup.Container) ([]*cri.Image, error) {
	list, err := conn.Images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return nil, connection.Plain(err)
	}
	uses, err := space.ReadUses(ctx, conn.Runtime, used)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.GetImages(), func(image *cri.Image) bool {
		return image.GetPinned() || uses.Of(image) != nil
	}), nil
}
