package lookup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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
// pod's annotation, else the first that was made, as kubectl takes the first of the specification. in, where it is not
// empty, is the name of the container in the pod that name stands for.
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
	return inPod(pods, all, name, in)
}

func inPod(pods []*cri.PodSandbox, all []*Container, name, in string) (*OneOf, error) {
	pod, err := matchPod(pods, name)
	if err != nil {
		if in != "" {
			return nil, err
		}
		// No pod's name: the containers' names were meant, and the error says which there are.
		_, err := matchContainer(all, name)
		return nil, err
	}
	own := Latest(filter(all, func(c *Container) bool { return c.PodSandboxId == pod.Id }))
	slices.SortStableFunc(own, func(a, b *Container) int { return int(a.CreatedAt - b.CreatedAt) })
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
	for _, c := range ordinary {
		one.Others = append(one.Others, c.GetMetadata().GetName())
		if c.GetMetadata().GetName() == pod.Annotations[AnnotationDefaultContainer] {
			one.Container = c
		}
	}
	if len(ordinary) == 1 {
		one.Others = nil
	}
	return one, nil
}

// PodContainers are the newest containers of a pod, each name once, in the order in which they were made.
func PodContainers(ctx context.Context, runtime cri.RuntimeServiceClient, pod *cri.PodSandbox) ([]*Container, error) {
	all, err := Containers(ctx, runtime, &cri.ContainerFilter{PodSandboxId: pod.Id})
	if err != nil {
		return nil, err
	}
	own := Latest(all)
	slices.SortStableFunc(own, func(a, b *Container) int { return int(a.CreatedAt - b.CreatedAt) })
	return own, nil
}
