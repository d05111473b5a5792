package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/images"
	"berth/internal/cli/launch"
	"berth/internal/cli/listing"
	"berth/internal/cli/lookup"
	"berth/internal/cli/poddir"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

// pruning says what a prune removes beside pods.
type pruning struct {
	images, volumes bool
	command.Removal
}

// garbage is what nobody needs any more.
type garbage struct {
	pods    []*cri.PodSandbox
	images  []*cri.Image
	volumes []string
}

func pruneCommand(a *command.App) *cobra.Command {
	var o pruning
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove ended pods of berth run, and what else nobody needs",
		Long: `Remove the pods that "berth run" has made and whose containers have ended, with their logs and empty
directories. With --images, also remove the images that no container uses any more and that are not pinned; with
--volumes, the named volumes that no container uses any more. Pods of others, such as a kubelet or "berth apply", are
never removed.

What would be removed is listed first, and removed once that is confirmed on the terminal. -f removes it without
asking, and --dry-run only lists it.`,
		Example: "  berth prune --dry-run --images --volumes\n  berth prune -f",
		Args:    command.Arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(a, cmd); err != nil {
				return err
			}
			conn, err := a.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			return prune(cmd.Context(), a, conn, o)
		},
	}
	cmd.Flags().BoolVar(&o.images, "images", false, "also unused images that are not pinned")
	cmd.Flags().BoolVar(&o.volumes, "volumes", false, "also unused named volumes, with what is in them")
	o.Add(cmd)
	return cmd
}

func prune(ctx context.Context, a *command.App, conn *connection.Connection, o pruning) error {
	found, err := findGarbage(ctx, a, conn, o)
	if err != nil {
		return err
	}
	if goOn, err := o.Confirm(ctx, a, found.names()); !goOn {
		return err
	}
	return collect(ctx, a, conn, found, o.Force)
}

// names are the kinds and names of all that is found.
func (g *garbage) names() []string {
	var all []string
	for _, pod := range g.pods {
		all = append(all, "pod "+lookup.ShortPodName(pod))
	}
	for _, image := range g.images {
		all = append(all, "image "+tagOf(image))
	}
	for _, volume := range g.volumes {
		all = append(all, "volume "+volume)
	}
	return all
}

func tagOf(image *cri.Image) string {
	for _, names := range [][]string{image.GetRepoTags(), image.GetRepoDigests()} {
		if len(names) > 0 {
			return names[0]
		}
	}
	return table.ShortID(image.GetId())
}

// findGarbage finds what nobody needs: pods that have ended, and what only these use.
func findGarbage(ctx context.Context, a *command.App, conn *connection.Connection, o pruning) (*garbage, error) {
	all, err := lookup.Containers(ctx, conn.Runtime, nil)
	if err != nil {
		return nil, err
	}
	pods, err := lookup.Pods(ctx, conn.Runtime)
	if err != nil {
		return nil, err
	}
	found, store := &garbage{}, a.Store(conn)
	ended := map[string]bool{} // pods, by ID
	for _, pod := range pods {
		if launch.Applied(store, pod) != "" {
			continue // it has ended, and tells `berth apply` that it is not to run again
		}
		over, err := isOver(ctx, conn, pod, all)
		if err != nil {
			return nil, err
		}
		if !over {
			continue
		}
		release, err := holdPod(store, pod)
		if err != nil {
			continue // a command runs it, or it is of another data directory
		}
		release()
		found.pods, ended[pod.GetId()] = append(found.pods, pod), true
	}
	used := slices.DeleteFunc(all, func(c *lookup.Container) bool { return ended[c.PodSandboxId] })
	if o.images {
		if found.images, err = images.Unused(ctx, conn, used); err != nil {
			return nil, err
		}
	}
	if o.volumes {
		found.volumes, err = unusedVolumes(ctx, conn, used)
	}
	return found, err
}

// holdPod keeps others from running a pod of this data directory. Its directory is the pod's own.
func holdPod(store *poddir.Store, pod *cri.PodSandbox) (release func(), err error) {
	dir, own := store.Owns(pod)
	if !own {
		return nil, fs.ErrNotExist
	}
	return dir.Hold()
}

// isOver says whether `berth run` has made a pod, and its containers have ended.
func isOver(ctx context.Context, conn *connection.Connection, pod *cri.PodSandbox,
	all []*lookup.Container) (bool, error) {
	if pod.GetAnnotations()[manifest.AnnotationOwner] == "" {
		return false, nil
	}
	var own []*lookup.Container
	for _, c := range all {
		// As long as init containers are all there is, the pod has not begun.
		if c.PodSandboxId == pod.GetId() && c.Annotations[manifest.AnnotationKind] != manifest.KindInit {
			own = append(own, c)
		}
	}
	state, err := listing.PodState(ctx, conn, pod, lookup.Latest(own))
	return state == "succeeded" || state == "failed" || state == "stopped", err
}

// unusedVolumes are those that no container uses but those that are gone by then.
func unusedVolumes(ctx context.Context, conn *connection.Connection, used []*lookup.Container) ([]string, error) {
	list, err := conn.Volumes.ListVolumes(ctx, &berthv1.ListVolumesRequest{})
	if connection.Code(err) == codes.Unimplemented {
		return nil, errors.New("--volumes: this runtime has no named volumes")
	}
	if err != nil {
		return nil, connection.Plain(err)
	}
	ids := map[string]bool{}
	for _, c := range used {
		ids[c.Id] = true
	}
	var names []string
	for _, volume := range list.GetVolumes() {
		if !slices.ContainsFunc(volume.GetContainerIds(), func(id string) bool { return ids[id] }) {
			names = append(names, volume.GetName())
		}
	}
	return names, nil
}

// collect removes what was found, as far as it is still garbage. tell has each name printed.
func collect(ctx context.Context, a *command.App, conn *connection.Connection, found *garbage, tell bool) error {
	var errs []error
	done := func(name string, err error) {
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("remove %s: %w", name, err))
		case tell:
			fmt.Fprintln(a.Out, name)
		}
	}
	for _, pod := range found.pods {
		if removed, err := collectPod(ctx, a, conn, pod); removed || err != nil {
			done("pod "+lookup.ShortPodName(pod), err)
		}
	}
	for _, image := range found.images {
		done("image "+tagOf(image), images.Remove(ctx, conn, image.GetId()))
	}
	for _, volume := range found.volumes {
		_, err := conn.Volumes.RemoveVolume(ctx, &berthv1.RemoveVolumeRequest{Name: volume})
		done("volume "+volume, connection.Plain(err))
	}
	return errors.Join(errs...)
}

// collectPod removes a pod unless somebody has started it again meanwhile.
func collectPod(ctx context.Context, a *command.App, conn *connection.Connection, pod *cri.PodSandbox) (bool, error) {
	release, err := holdPod(a.Store(conn), pod)
	if errors.Is(err, poddir.ErrHeld) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer release()
	own, err := lookup.Containers(ctx, conn.Runtime, &cri.ContainerFilter{PodSandboxId: pod.GetId()})
	if err != nil {
		return false, err
	}
	if over, err := isOver(ctx, conn, pod, own); err != nil || !over {
		return false, err
	}
	return true, launch.RemovePod(ctx, conn.Runtime, a.Store(conn), pod)
}
