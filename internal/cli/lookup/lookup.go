package lookup

import (
	"context"
	"fmt"
	"sort"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

// NotFoundError is the error for a name that no object has.
type NotFoundError struct {
	Kind, Name, Try string
	Near            []string // names that may have been meant
}

func (e *NotFoundError) Error() string {
	text := fmt.Sprintf("there is no %s %q. ", e.Kind, e.Name)
	if len(e.Near) > 0 {
		text += "Did you mean " + strings.Join(e.Near, " or ") + "? "
	}
	return text + e.Try
}

// AmbiguousError is a name that several bear.
type AmbiguousError struct {
	Kind, Name string
	Candidates []string
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%q could be any of these %ss; say more of the name or the ID:\n  %s", e.Name, e.Kind,
		strings.Join(e.Candidates, "\n  "))
}

// PodName is namespace/name of a sandbox.
func PodName(s *cri.PodSandbox) string {
	return s.GetMetadata().GetNamespace() + "/" + s.GetMetadata().GetName()
}

// ShortPodName is the name of a pod without its namespace where that is the default one.
func ShortPodName(s *cri.PodSandbox) string {
	if s.GetMetadata().GetNamespace() == "default" {
		return s.GetMetadata().GetName()
	}
	return PodName(s)
}

// Pod finds a sandbox.
func Pod(ctx context.Context, runtime cri.RuntimeServiceClient, name string) (*cri.PodSandbox, error) {
	pods, err := Pods(ctx, runtime)
	if err != nil {
		return nil, err
	}
	return matchPod(pods, name)
}

// Pods lists all sandboxes, by namespace and name, newest first among those of one name.
func Pods(ctx context.Context, runtime cri.RuntimeServiceClient) ([]*cri.PodSandbox, error) {
	list, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, connection.Plain(err)
	}
	sort.SliceStable(list.Items, func(i, j int) bool {
		a, b := list.Items[i], list.Items[j]
		if PodName(a) != PodName(b) {
			return PodName(a) < PodName(b)
		}
		return a.CreatedAt > b.CreatedAt
	})
	return list.Items, nil
}

func matchPod(pods []*cri.PodSandbox, name string) (*cri.PodSandbox, error) {
	if name == "" {
		return nil, &NotFoundError{Kind: "pod", Try: "Name one: `berth pods` lists them."}
	}
	var named []*cri.PodSandbox
	for _, pod := range pods {
		if PodName(pod) == name || pod.GetMetadata().GetName() == name {
			named = append(named, pod)
		}
	}
	if found := newest(named); len(found) > 0 {
		return onePod(name, found)
	}
	var prefixed []*cri.PodSandbox
	for _, pod := range pods {
		if strings.HasPrefix(pod.Id, name) {
			prefixed = append(prefixed, pod)
		}
	}
	if len(prefixed) == 0 {
		return nil, &NotFoundError{Kind: "pod", Name: name, Try: "`berth pods` lists what there is.",
			Near: nearPods(name, pods)}
	}
	return onePod(name, prefixed)
}

// newest keeps one sandbox of each namespace and name: one that is ready if there is, else the last one made.
func newest(pods []*cri.PodSandbox) []*cri.PodSandbox {
	best := map[string]*cri.PodSandbox{}
	var order []string
	for _, pod := range pods {
		key := PodName(pod)
		other, seen := best[key]
		if !seen {
			order = append(order, key)
		}
		if !seen || newer(pod, other) {
			best[key] = pod
		}
	}
	var kept []*cri.PodSandbox
	for _, key := range order {
		kept = append(kept, best[key])
	}
	return kept
}

func newer(a, b *cri.PodSandbox) bool {
	if (a.State == cri.PodSandboxState_SANDBOX_READY) != (b.State == cri.PodSandboxState_SANDBOX_READY) {
		return a.State == cri.PodSandboxState_SANDBOX_READY
	}
	return a.CreatedAt > b.CreatedAt
}

func onePod(name string, found []*cri.PodSandbox) (*cri.PodSandbox, error) {
	if len(found) == 1 {
		return found[0], nil
	}
	var candidates []string
	for _, pod := range found {
		candidates = append(candidates, fmt.Sprintf("%s (%s)", PodName(pod), table.ShortID(pod.Id)))
	}
	return nil, &AmbiguousError{"pod", name, candidates}
}

// Container is a container with the sandbox it belongs to.
type Container struct {
	*cri.Container
	Pod *cri.PodSandbox
}

// FullName is namespace/pod/container.
func (c *Container) FullName() string { return PodName(c.Pod) + "/" + c.GetMetadata().GetName() }

// ShortName is pod/container, with the namespace before it unless that is "default".
func (c *Container) ShortName() string {
	if c.Pod.GetMetadata().GetNamespace() == "default" {
		return c.Pod.GetMetadata().GetName() + "/" + c.GetMetadata().GetName()
	}
	return c.FullName()
}

// FindContainer finds a container.
func FindContainer(ctx context.Context, runtime cri.RuntimeServiceClient, name string) (*Container, error) {
	all, err := Containers(ctx, runtime, nil)
	if err != nil {
		return nil, err
	}
	return matchContainer(all, name)
}

// Containers lists containers with their pods, by name, the newest first among those of one name.
func Containers(ctx context.Context, runtime cri.RuntimeServiceClient,
	filter *cri.ContainerFilter) ([]*Container, error) {
	list, err := runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: filter})
	if err != nil {
		return nil, connection.Plain(err)
	}
	pods, err := Pods(ctx, runtime)
	if err != nil {
		return nil, err
	}
	byID := map[string]*cri.PodSandbox{}
	for _, pod := range pods {
		byID[pod.Id] = pod
	}
	var all []*Container
	for _, c := range list.Containers {
		pod := byID[c.PodSandboxId]
		if pod == nil { // made or removed between the two lists
			pod = &cri.PodSandbox{Id: c.PodSandboxId, Metadata: &cri.PodSandboxMetadata{
				Name: c.Labels[manifest.LabelPodName], Namespace: c.Labels[manifest.LabelPodNamespace],
			}}
		}
		all = append(all, &Container{c, pod})
	}
	sort.SliceStable(all, func(i, j int) bool {
		if all[i].FullName() != all[j].FullName() {
			return all[i].FullName() < all[j].FullName()
		}
		return all[i].CreatedAt > all[j].CreatedAt
	})
	return all, nil
}

func matchContainer(all []*Container, name string) (*Container, error) {
	if name == "" {
		return nil, &NotFoundError{Kind: "container", Try: "Name one: `berth ps -a` lists them."}
	}
	for _, fits := range []func(*Container) bool{
		func(c *Container) bool {
			return c.FullName() == name || c.Pod.GetMetadata().GetName()+"/"+c.GetMetadata().GetName() == name ||
				c.GetMetadata().GetName() == name
		},
		func(c *Container) bool { return strings.HasPrefix(c.Id, name) },
	} {
		if found := Latest(filter(all, fits)); len(found) > 0 {
			return oneContainer(name, found)
		}
	}
	// The name of a pod will do where it has but one container.
	inPod := Latest(filter(all, func(c *Container) bool {
		return PodName(c.Pod) == name || c.Pod.GetMetadata().GetName() == name
	}))
	if len(inPod) == 0 {
		return nil, &NotFoundError{Kind: "container", Name: name, Try: "`berth ps -a` lists what there is.",
			Near: nearContainers(name, all)}
	}
	if ordinary := filter(inPod, func(c *Container) bool {
		return c.Annotations[manifest.AnnotationKind] == ""
	}); len(ordinary) > 0 {
		inPod = ordinary
	}
	return oneContainer(name, inPod)
}

func filter(all []*Container, keep func(*Container) bool) []*Container {
	var kept []*Container
	for _, c := range all {
		if keep(c) {
			kept = append(kept, c)
		}
	}
	return kept
}

// Latest keeps one container of each name: that of the sandbox which is newest, and there the last attempt.
func Latest(all []*Container) []*Container {
	best := map[string]*Container{}
	var order []string
	for _, c := range all {
		key := c.FullName()
		other, seen := best[key]
		if !seen {
			order = append(order, key)
		}
		if !seen || c.PodSandboxId == other.PodSandboxId && c.GetMetadata().GetAttempt() > other.GetMetadata().GetAttempt() ||
			c.PodSandboxId != other.PodSandboxId && newer(c.Pod, other.Pod) {
			best[key] = c
		}
	}
	var kept []*Container
	for _, key := range order {
		kept = append(kept, best[key])
	}
	return kept
}

func oneContainer(name string, found []*Container) (*Container, error) {
	if len(found) == 1 {
		return found[0], nil
	}
	var candidates []string
	for _, c := range found {
		candidates = append(candidates, fmt.Sprintf("%s (%s)", c.ShortName(), table.ShortID(c.Id)))
	}
	return nil, &AmbiguousError{"container", name, candidates}
}

// Previous finds the container that ran before c under the same name in the same pod.
func Previous(ctx context.Context, runtime cri.RuntimeServiceClient, c *Container) (*Container, error) {
	all, err := Containers(ctx, runtime, &cri.ContainerFilter{PodSandboxId: c.PodSandboxId})
	if err != nil {
		return nil, err
	}
	var previous *Container
	for _, other := range all {
		if other.GetMetadata().GetName() == c.GetMetadata().GetName() &&
			other.GetMetadata().GetAttempt() < c.GetMetadata().GetAttempt() &&
			(previous == nil || other.GetMetadata().GetAttempt() > previous.GetMetadata().GetAttempt()) {
			previous = other
		}
	}
	if previous == nil {
		return nil, &NotFoundError{Kind: "previous container of", Name: c.ShortName(),
			Try: "It has not been restarted, or its predecessor is removed."}
	}
	return previous, nil
}
