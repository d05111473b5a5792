package images

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/space"
	"berth/internal/cli/table"
)

func rmiCommand(a *command.App) *cobra.Command {
	var unused bool
	cmd := &cobra.Command{
		Use:   "rmi IMAGE...",
		Short: "Remove images",
		Long:  "Remove images, by name or ID. With --unused, remove all images that no container uses.",
		Args: command.Arguments(func(_ *cobra.Command, args []string) error {
			if unused == (len(args) > 0) {
				return errors.New("name images, or give --unused")
			}
			return nil
		}),
		ValidArgsFunction: a.Complete(0, command.ImageNames),
		RunE: a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
			if unused {
				containers, err := lookup.Containers(ctx, conn.Runtime, nil)
				if err != nil {
					return err
				}
				images, err := Unused(ctx, conn, containers)
				if err != nil {
					return err
				}
				for _, image := range images {
					args = append(args, image.GetId())
				}
			}
			var errs []error
			for _, name := range args {
				if err := Remove(ctx, conn, name); err != nil {
					errs = append(errs, fmt.Errorf("remove image %s: %w", name, err))
					continue
				}
				fmt.Fprintln(a.Out, name)
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().BoolVar(&unused, "unused", false, "all images that no container uses, except pinned images")
	return cmd
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
