package launch

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// slack is how much longer than a container's grace period a stop may take.
const slack = 30 * time.Second

// How long a pod's end waits for a runtime that is being started again, and how often it asks.
const (
	longestAway = 15 * time.Second
	askAgain    = 200 * time.Millisecond
)

// answered repeats a call that the runtime does not answer because it is being started again, so that a restart leaves
// nothing behind of a pod that is stopped or removed just then. The call has to be one that may be made twice.
func answered(ctx context.Context, call func() error) error {
	for until := time.Now().Add(longestAway); ; {
		err := connection.Plain(call())
		if err == nil || !connection.Away(err) || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askAgain):
		}
	}
}

// GracePeriod is how long the containers that bear these annotations have to end. Kubernetes' default where they say
// nothing.
func GracePeriod(annotations map[string]string) time.Duration {
	seconds, err := strconv.ParseInt(annotations[manifest.AnnotationGracePeriod], 10, 64)
	if err != nil || seconds < 0 {
		return 30 * time.Second
	}
	return manifest.Seconds(seconds)
}

// StopContainer stops a container; after grace it is killed.
func StopContainer(ctx context.Context, runtime cri.RuntimeServiceClient, id string, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+slack)
	defer cancel()
	return answered(ctx, func() error {
		_, err := runtime.StopContainer(ctx,
			&cri.StopContainerRequest{ContainerId: id, Timeout: int64(grace.Round(time.Second).Seconds())})
		return err
	})
}

// StopPod stops a pod as a kubelet does: the containers together, then the sidecars, the last one first, each with the
// grace period; then the sandbox. A negative grace stands for the pod's own.
func StopPod(ctx context.Context, runtime cri.RuntimeServiceClient, pod *cri.PodSandbox, grace time.Duration) error {
	return StopPodAfter(ctx, runtime, pod, grace, nil)
}

// StopPodAfter stops a pod, and before each container calls preStop, which returns what it has left of the grace
// period.
func StopPodAfter(ctx context.Context, runtime cri.RuntimeServiceClient, pod *cri.PodSandbox, grace time.Duration,
	preStop func(ctx context.Context, c *cri.Container, grace time.Duration) time.Duration) error {
	if preStop == nil {
		preStop = func(_ context.Context, _ *cri.Container, grace time.Duration) time.Duration { return grace }
	}
	if grace < 0 {
		grace = GracePeriod(pod.GetAnnotations())
	}
	var list *cri.ListContainersResponse
	if err := answered(ctx, func() (err error) {
		list, err = runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
			PodSandboxId: pod.GetId(),
			State:        &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
		}})
		return err
	}); err != nil {
		return err
	}
	var sidecars []*cri.Container
	var group errgroup.Group
	for _, c := range list.GetContainers() {
		if c.GetAnnotations()[manifest.AnnotationKind] == manifest.KindSidecar {
			sidecars = append(sidecars, c)
			continue
		}
		group.Go(func() error {
			if err := StopContainer(ctx, runtime, c.GetId(), preStop(ctx, c, grace)); err != nil {
				return fmt.Errorf("stop container %s: %w", c.GetMetadata().GetName(), err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	sort.Slice(sidecars, func(i, j int) bool { return sidecars[i].GetCreatedAt() > sidecars[j].GetCreatedAt() })
	for _, c := range sidecars {
		if err := StopContainer(ctx, runtime, c.GetId(), preStop(ctx, c, grace)); err != nil {
			return fmt.Errorf("stop sidecar %s: %w", c.GetMetadata().GetName(), err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, slack)
	defer cancel()
	return stopSandbox(ctx, runtime, pod.GetId())
}

// RemovePod removes a pod, running or not, and its directory in the store.
func RemovePod(ctx context.Context, runtime cri.RuntimeServiceClient, store *poddir.Store, pod *cri.PodSandbox) error {
	if err := removeSandbox(ctx, runtime, pod.GetId()); err != nil {
		return err
	}
	meta := pod.GetMetadata()
	dir := store.Dir(meta.GetNamespace(), meta.GetName(), meta.GetUid())
	release, err := dir.Lock()
	if err != nil {
		return err
	}
	defer release()
	// A pod that is run by others, a kubelet for one, has no directory here; another attempt of the same pod may be there.
	others, err := podsOf(ctx, runtime)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.GetMetadata().GetUid() == meta.GetUid() {
			return nil
		}
	}
	return dir.Remove()
}

// podsOf are all pods of the runtime, once it answers.
func podsOf(ctx context.Context, runtime cri.RuntimeServiceClient) (pods []*cri.PodSandbox, err error) {
	err = answered(ctx, func() error {
		pods, err = lookup.Pods(ctx, runtime)
		return err
	})
	return pods, err
}

func stopSandbox(ctx context.Context, runtime cri.RuntimeServiceClient, id string) error {
	return answered(ctx, func() error {
		_, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func removeSandbox(ctx context.Context, runtime cri.RuntimeServiceClient, id string) error {
	ctx, cancel := context.WithTimeout(ctx, slack)
	defer cancel()
	if err := stopSandbox(ctx, runtime, id); err != nil {
		return err
	}
	return answered(ctx, func() error {
		_, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}
