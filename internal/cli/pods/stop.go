package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
	"berth/internal/cli/streaming"
	"berth/internal/manifest"
)

// target is a pod or a container that a name stands for.
type target struct {
	pod       *cri.PodSandbox
	container *lookup.Container // nil: the pod
}

func (t target) String() string {
	if t.container != nil {
		return t.container.ShortName()
	}
	return lookup.ShortPodName(t.pod)
}

// find looks for a pod, then for a container.
func find(ctx context.Context, conn *connection.Connection, name string) (target, error) {
	pod, err := lookup.Pod(ctx, conn.Runtime, name)
	if err == nil {
		return target{pod: pod}, nil
	}
	var none *lookup.NotFoundError
	if !errors.As(err, &none) {
		return target{}, err
	}
	container, err := lookup.FindContainer(ctx, conn.Runtime, name)
	if pods := none.Near; errors.As(err, &none) {
		near := slices.Concat(pods, none.Near)
		slices.Sort(near)
		return target{}, &lookup.NotFoundError{Kind: "pod or container", Name: name,
			Try: "`berth pods` and `berth ps -a` list what there is.", Near: slices.Compact(near)}
	}
	if err != nil {
		return target{}, err
	}
	return target{pod: container.Pod, container: container}, nil
}

// findTargets finds all that is named, or all pods, before anything is done to any. The error joins one for each name
// that stands for nothing, or for several; the others are found all the same.
func findTargets(ctx context.Context, a *command.App, conn *connection.Connection,
	names []string, all bool) ([]target, error) {
	var list []target
	if all {
		pods, err := lookup.Pods(ctx, conn.Runtime)
		for _, pod := range pods {
			list = append(list, target{pod: pod})
		}
		return list, err
	}
	var errs []error
	for _, name := range names {
		t, err := find(ctx, conn, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, t)
	}
	return list, errors.Join(errs...)
}

// atOnce is to how many pods a command does something at the same time: the end of each may take its grace period.
const atOnce = 16

// eachTarget does one thing to all that is named, or to all pods, and prints the names of those to which it could, each
// when it is done. It goes on after a name that stands for nothing, which is told before anything is done, and after a
// failure.
func eachTarget(a *command.App, all *bool, verb string,
	do func(context.Context, *connection.Connection, target) error) func(*cobra.Command, []string) error {
	return a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
		list, err := findTargets(ctx, a, conn, args, *all)
		if err != nil && len(list) > 0 {
			fmt.Fprintf(a.Err, "berth: %s\n", connection.Message(err))
			err = &streaming.ExitError{Code: command.ExitError} // it has been told
		}
		return cmp.Or(forAll(list, func(t target) error {
			if err := do(ctx, conn, t); err != nil {
				return fmt.Errorf("%s %s: %w", verb, t, err)
			}
			_, err := fmt.Fprintln(a.Out, t)
			return err
		}), err)
	})
}

// forAll does something to several pods at a time, and to the targets of one pod one after another: they may depend on
// each other. A target that is there twice counts once. The errors come in the order of the targets.
func forAll(list []target, do func(target) error) error {
	type key struct{ pod, container string }
	seen, errs := map[key]bool{}, make([]error, len(list))
	var order []string
	byPod := map[string][]int{}
	for i, t := range list {
		k := key{pod: t.pod.GetId()}
		if t.container != nil {
			k.container = t.container.GetId()
		}
		if seen[k] {
			continue
		}
		if seen[k] = true; byPod[k.pod] == nil {
			order = append(order, k.pod)
		}
		byPod[k.pod] = append(byPod[k.pod], i)
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, pod := range order {
		group.Go(func() error {
			for _, i := range byPod[pod] {
				errs[i] = do(list[i])
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	return errors.Join(errs...)
}

// namesOrAll checks that there are names, or --all.
func namesOrAll(all *bool) cobra.PositionalArgs {
	return command.Arguments(func(_ *cobra.Command, args []string) error {
		switch {
		case *all && len(args) > 0:
			return errors.New("names and --all exclude each other")
		case !*all && len(args) == 0:
			return errors.New("name a pod or a container, or give --all")
		}
		return nil
	})
}

func stopCommand(a *command.App) *cobra.Command {
	var all bool
	var seconds int
	cmd := &cobra.Command{
		Use:   "stop POD|CONTAINER...",
		Short: "Stop pods or containers",
		Long: "Stop pods or containers. " +
			"Each container gets its stop signal, and is killed after --time or the pod's grace period.",
		Args:              namesOrAll(&all),
		ValidArgsFunction: a.Complete(0, command.PodNames, command.ContainerNames),
		RunE: eachTarget(a, &all, "stop", func(ctx context.Context, conn *connection.Connection, t target) error {
			return stop(ctx, conn, t, seconds)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all pods")
	cmd.Flags().IntVarP(&seconds, "time", "t", -1, "seconds until containers are killed; negative: the pod's grace period")
	return cmd
}

func stop(ctx context.Context, conn *connection.Connection, t target, seconds int) error {
	grace := manifest.Seconds(int64(seconds))
	if t.container == nil {
		return launch.StopPod(ctx, conn.Runtime, t.pod, grace)
	}
	if grace < 0 {
		grace = launch.GracePeriod(t.container.Annotations)
	}
	return launch.StopContainer(ctx, conn.Runtime, t.container.Id, grace)
}
