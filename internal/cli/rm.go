package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
	"berth/internal/cli/space"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

func (a *app) rmCommand() *cobra.Command {
	var all, force bool
	cmd := &cobra.Command{
		Use:   "rm POD|CONTAINER...",
		Short: "Remove pods or containers",
		Long: "Remove pods with their containers, volumes and logs, or single containers. " +
			"A running pod or container is removed only with --force.",
		Args:              namesOrAll(&all),
		ValidArgsFunction: a.complete(0, podNames, containerNames),
		RunE: a.each(&all, "remove", func(ctx context.Context, conn *connection.Connection, t target) error {
			return a.remove(ctx, conn, t, force)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "stop running pods and containers first")
	return cmd
}

func (a *app) remove(ctx context.Context, conn *connection.Connection, t target, force bool) error {
	filter := &cri.ContainerFilter{PodSandboxId: t.pod.GetId()}
	if t.container != nil {
		filter.Id = t.container.Id
	}
	filter.State = &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}
	running, err := conn.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: filter})
	if err != nil {
		return connection.Plain(err)
	}
	if len(running.GetContainers()) > 0 {
		if !force {
			return fmt.Errorf("it is running: stop it with `berth stop %s`, or give --force", t)
		}
		if err := stop(ctx, conn, t, -1); err != nil {
			return err
		}
	}
	if t.container != nil {
		_, err := conn.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: t.container.Id})
		return connection.Plain(err)
	}
	store := a.store(conn)
	if err := launch.RemovePod(ctx, conn.Runtime, store, t.pod); err != nil {
		return err
	}
	// A pod that another data directory was used for keeps its files there: say so rather than remove what is not known
	// here.
	if dir := t.pod.GetAnnotations()[manifest.AnnotationDirectory]; dir != "" {
		if _, err := os.Stat(dir); err == nil {
			fmt.Fprintf(a.err, "warning: the pod's files are still in %s, which is not below --data-dir %s\n", dir, a.dataDir)
		}
	}
	return nil
}

func (a *app) rmiCommand() *cobra.Command {
	var unused bool
	cmd := &cobra.Command{
		Use:   "rmi IMAGE...",
		Short: "Remove images",
		Long:  "Remove images, by name or ID. With --unused, remove all images that no container uses.",
		Args: arguments(func(_ *cobra.Command, args []string) error {
			if unused == (len(args) > 0) {
				return errors.New("name images, or give --unused")
			}
			return nil
		}),
		ValidArgsFunction: a.complete(0, imageNames),
		RunE: a.connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
			if unused {
				containers, err := lookup.Containers(ctx, conn.Runtime, nil)
				if err != nil {
					return err
				}
				images, err := unusedImages(ctx, conn, containers)
				if err != nil {
					return err
				}
				for _, image := range images {
					args = append(args, image.GetId())
				}
			}
			var errs []error
			for _, name := range args {
				if err := removeImage(ctx, conn, name); err != nil {
					errs = append(errs, fmt.Errorf("remove image %s: %w", name, err))
					continue
				}
				fmt.Fprintln(a.out, name)
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().BoolVar(&unused, "unused", false, "all images that no container uses, except pinned images")
	return cmd
}

func removeImage(ctx context.Context, conn *connection.Connection, name string) error {
	spec := &cri.ImageSpec{Image: name}
	status, err := conn.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
	if err != nil {
		return connection.Plain(err)
	}
	// The interface calls the removal of nothing a success; a person has mistyped.
	if status.GetImage() == nil {
		return noImage(ctx, conn, name)
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

// unusedImages are the images that are neither pinned nor used by any of the containers.
func unusedImages(ctx context.Context, conn *connection.Connection, used []*lookup.Container) ([]*cri.Image, error) {
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
