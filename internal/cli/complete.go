package cli

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

type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// complete asks the runtime for names. Without a runtime there is nothing to offer, which is no error while somebody
// types.
func (a *app) complete(max int, names ...func(context.Context, *connection.Connection) []string) completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if max > 0 && len(args) >= max {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
		defer cancel()
		conn, err := a.dial(ctx)
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

func podNames(ctx context.Context, conn *connection.Connection) []string {
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

func containerNames(ctx context.Context, conn *connection.Connection) []string {
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

func imageNames(ctx context.Context, conn *connection.Connection) []string {
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

// shortPodName is a pod's name, with its namespace unless that is "default".

func resourceNames(ctx context.Context, conn *connection.Connection) []string {
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
