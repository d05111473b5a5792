package command

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

// completionPatience is how long a shell waits for names.
const completionPatience = time.Second

// Completer is what cobra asks for completions.
type Completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// Complete asks the runtime for names. Without a runtime there is nothing to offer, which is no error while somebody
// types.
func (a *App) Complete(max int, names ...func(context.Context, *connection.Connection) []string) Completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if max > 0 && len(args) >= max {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
		defer cancel()
		conn, err := a.Dial(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer conn.Close()
		var all []string
		for _, list := range names {
			all = append(all, list(ctx, conn)...)
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

// PodNames are the names of all pods.
func PodNames(ctx context.Context, conn *connection.Connection) []string {
	pods, err := lookup.Pods(ctx, conn.Runtime)
	if err != nil {
		return nil
	}
	var names []string
	for _, pod := range pods {
		names = append(names, lookup.ShortPodName(pod))
	}
	return names
}

// ContainerNames are the names of all containers.
func ContainerNames(ctx context.Context, conn *connection.Connection) []string {
	all, err := lookup.Containers(ctx, conn.Runtime, nil)
	if err != nil {
		return nil
	}
	var names []string
	for _, c := range all {
		names = append(names, c.ShortName())
	}
	return names
}

// ImageNames are the names of all images.
func ImageNames(ctx context.Context, conn *connection.Connection) []string {
	list, err := conn.Images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return nil
	}
	var names []string
	for _, image := range list.GetImages() {
		names = append(names, image.GetRepoTags()...)
	}
	return names
}

// ResourceNames are the names of the resources of device plugins.
func ResourceNames(ctx context.Context, conn *connection.Connection) []string {
	list, err := conn.Devices.List(ctx, &berthv1.ListDevicesRequest{})
	if err != nil {
		return nil
	}
	var names []string
	for _, r := range list.GetResources() {
		names = append(names, r.GetName())
	}
	return names
}
