package lookup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
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
	own := inOrder(filter(all, func(c *Container) bool { return c.PodSandboxId == pod.Id }))
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
	first := map[string]int64{}
	for _, c := range all {
		name := c.GetMetadata().GetName()
		if made, seen := first[name]; !seen || c.CreatedAt < made {
			first[name] = c.CreatedAt
		}
	}
	own := Latest(all)
	noted := !slices.ContainsFunc(own, func(c *Container) bool { _, ok := position(c); return !ok })
	slices.SortStableFunc(own, func(a, b *Container) int {
		if noted {
			at, _ := position(a)
			other, _ := position(b)
			return cmp.Compare(at, other)
		}
		return cmp.Compare(first[a.GetMetadata().GetName()], first[b.GetMetadata().GetName()])
	})
	return own
}

// position is the place of a container in the manifest of its pod; ok is false where it was not noted.
func position(c *Container) (at int, ok bool) {
	at, err := strconv.Atoi(c.Annotations[manifest.AnnotationPosition])
	return at, err == nil
}
