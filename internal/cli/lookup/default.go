package lookup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/manifest"
)

// AnnotationDefaultContainer names the container of a pod that kubectl takes where none is named.
const AnnotationDefaultContainer = "kubectl.kubernetes.io/default-container"

// OneOf is a container that somebody has to talk to: exec, attach and logs take one.
type OneOf struct {
	*Container
	// Others are the names of the pod's containers where the pod was named and one of several was taken; empty where there
	// was no choice.
	Others []string
}

// Notice says which container was taken, in kubectl's words; "" where there was no choice.
func (o *OneOf) Notice() string {
	if len(o.Others) == 0 {
		return ""
	}
	return fmt.Sprintf("Defaulted container %q out of: %s", o.GetMetadata().GetName(), strings.Join(o.Others, ", "))
}

// DefaultContainer finds a container as FindContainer does. Where name is a pod with several, it takes the one of the
// pod's annotation, else the first of the pod's manifest that is no init container, as kubectl does. in, where it is
// not empty, is the name of the container in the pod that name stands for.
func DefaultContainer(ctx context.Context, runtime cri.RuntimeServiceClient, name, in string) (*OneOf, error) {
	all, err := Containers(ctx, runtime, nil)
	if err != nil {
		return nil, err
	}
	if in == "" {
		if c, err := matchContainer(all, name); err == nil {
			return &OneOf{Container: c}, nil
		}
	}
	pods, err := Pods(ctx, runtime)
	if err != nil {
		return nil, err
	}
	var failed error
	one, err := inPod(pods, all, name, in, func(c *Container) (ended int64, well bool) {
		response, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
		if err != nil && connection.Code(err) != codes.NotFound {
			failed = connection.Plain(err)
		}
		status := response.GetStatus()
		return status.GetFinishedAt(), status.GetState() == cri.ContainerState_CONTAINER_EXITED && status.GetExitCode() == 0
	})
	if failed != nil {
		return nil, failed
	}
	return one, err
}

// inPod finds a container of a pod. end says when a container has ended, and whether it has done so with exit code 0.
func inPod(pods []*cri.PodSandbox, all []*Container, name, in string,
	end func(*Container) (ended int64, well bool)) (*OneOf, error) {
	pod, err := matchPod(pods, name)
	if err != nil {
		if in != "" {
			return nil, err
		}
		// No pod's name: the containers' names were meant, and the error says which there are.
		_, err := matchContainer(all, name)
		return nil, err
	}
	attempts := filter(all, func(c *Container) bool { return c.PodSandboxId == pod.Id })
	own := inOrder(attempts)
	if in != "" {
		var names []string
		for _, c := range own {
			if c.GetMetadata().GetName() == in {
				return &OneOf{Container: c}, nil
			}
			names = append(names, c.GetMetadata().GetName())
		}
		return nil, &NotFoundError{Kind: "container", Name: in,
			Try: fmt.Sprintf("Pod %s has: %s.", PodName(pod), strings.Join(names, ", "))}
	}
	ordinary := filter(own, func(c *Container) bool { return c.Annotations[manifest.AnnotationKind] == "" })
	if len(ordinary) == 0 {
		return nil, &NotFoundError{Kind: "container in pod", Name: name, Try: "`berth ps -a` lists what there is."}
	}
	one := &OneOf{Container: ordinary[0]}
	if !noted(own) && len(ordinary) > 1 {
		one.Container = firstOrdinary(ordinary, attempts, end)
	}
	for _, c := range ordinary {
		one.Others = append(one.Others, c.GetMetadata().GetName())
	}
	for _, c := range own { // the annotation may name a sidecar
		if c.GetMetadata().GetName() == pod.Annotations[AnnotationDefaultContainer] {
			one.Container = c
		}
	}
	if len(ordinary) == 1 {
		one.Others = nil
	}
	return one, nil
}

// PodContainers are the newest containers of a pod, each name once, in the order of its manifest.
func PodContainers(ctx context.Context, runtime cri.RuntimeServiceClient, pod *cri.PodSandbox) ([]*Container, error) {
	all, err := Containers(ctx, runtime, &cri.ContainerFilter{PodSandboxId: pod.Id})
	if err != nil {
		return nil, err
	}
	return inOrder(all), nil
}

// inOrder are the newest containers of a pod, each name once, in the order of the pod's manifest. Where nobody has
// noted that, as in a pod of a kubelet, it is the order in which their oldest attempts were made that are still there:
// one that was started again keeps its place for as long as the attempt before is kept.
func inOrder(all []*Container) []*Container {
	first, own := oldest(all), Latest(all)
	known := noted(own)
	slices.SortStableFunc(own, func(a, b *Container) int {
		if known {
			at, _ := position(a)
			other, _ := position(b)
			return cmp.Compare(at, other)
		}
		return cmp.Compare(first[a.GetMetadata().GetName()], first[b.GetMetadata().GetName()])
	})
	return own
}

// oldest is when the oldest attempt of each container of a pod was made, by name.
func oldest(all []*Container) map[string]int64 {
	first := map[string]int64{}
	for _, c := range all {
		name := c.GetMetadata().GetName()
		if made, seen := first[name]; !seen || c.CreatedAt < made {
			first[name] = c.CreatedAt
		}
	}
	return first
}

// firstOrdinary is the first container of a pod of which nobody has noted what is an init container, as of a kubelet's:
// one that had ended well before another was made for the first time is taken for that.
func firstOrdinary(own, attempts []*Container, end func(*Container) (int64, bool)) *Container {
	first := oldest(attempts)
	for _, c := range own {
		ended, well := int64(0), false
		if c.State == cri.ContainerState_CONTAINER_EXITED {
			ended, well = end(c)
		}
		later := func(other *Container) bool { return first[other.GetMetadata().GetName()] > ended }
		if !well || !slices.ContainsFunc(own, later) {
			return c
		}
	}
	return own[0]
}

// noted says whether the places of all of these containers were noted.
func noted(own []*Container) bool {
	return !slices.ContainsFunc(own, func(c *Container) bool { _, ok := position(c); return !ok })
}

// position is the place of a container in the manifest of its pod; ok is false where it was not noted.
func position(c *Container) (at int, ok bool) {
	at, err := strconv.Atoi(c.Annotations[manifest.AnnotationPosition])
	return at, err == nil
}
