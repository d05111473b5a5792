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

// GracePeriod is how long the containers that bear these annotations have to end. Kubernetes' default where they say
// nothing.
func GracePeriod(annotations map[string]string) time.Duration {
	seconds, err := strconv.ParseInt(annotations[manifest.AnnotationGracePeriod], 10, 32)
	if err != nil || seconds < 0 {
		return 30 * time.Second
	}
	return time.Duration(seconds) * time.Second
}

// StopContainer stops a container; after grace it is killed.
func StopContainer(ctx context.Context, runtime cri.RuntimeServiceClient, id string, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+slack)
	defer cancel()
	_, err := runtime.StopContainer(ctx,
		&cri.StopContainerRequest{ContainerId: id, Timeout: int64(grace.Round(time.Second).Seconds())})
	return connection.Plain(err)
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
	list, err := runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		PodSandboxId: pod.GetId(),
		State:        &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return connection.Plain(err)
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
	_, err = runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.GetId()})
	return connection.Plain(err)
}

// RemovePod removes a pod, running or not, and its directory in the store.
func RemovePod(ctx context.Context, runtime cri.RuntimeServiceClient, store *poddir.Store, pod *cri.PodSandbox) error {
	if err := removeSandbox(ctx, runtime, pod.GetId()); err != nil {
		return err
	}
	meta := pod.GetMetadata()
	// A pod that is run by others, a kubelet for one, has no directory here; another attempt of the same pod may be there.
	others, err := lookup.Pods(ctx, runtime)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.GetMetadata().GetUid() == meta.GetUid() {
			return nil
		}
	}
	return store.Dir(meta.GetNamespace(), meta.GetName(), meta.GetUid()).Remove()
}

func removeSandbox(ctx context.Context, runtime cri.RuntimeServiceClient, id string) error {
	ctx, cancel := context.WithTimeout(ctx, slack)
	defer cancel()
	if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return connection.Plain(err)
	}
	_, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return connection.Plain(err)
}
