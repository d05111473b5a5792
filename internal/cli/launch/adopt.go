package launch

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// Found is the last attempt of a container of a pod that was there before this command.
type Found struct {
	*Container
	Status  *cri.ContainerStatus
	imageID string
}

// Applied is the directory of manifests that keeps a pod running; empty: there is none. Both the annotation of the pod
// and its directory in the store have to say so.
func Applied(store *poddir.Store, pod *cri.PodSandbox) string {
	said, meta := pod.GetAnnotations()[manifest.AnnotationApplied], pod.GetMetadata()
	if said == "" || store.Applied(meta.GetNamespace(), meta.GetName(), meta.GetUid()) != said {
		return ""
	}
	return said
}

// Find lists the last attempt of each container of a sandbox, by name.
func (l *Launcher) Find(ctx context.Context, sandbox *cri.PodSandbox) (map[string]*Found, error) {
	meta := sandbox.GetMetadata()
	dir := l.Store.Dir(meta.GetNamespace(), meta.GetName(), meta.GetUid())
	last, err := l.attempts(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	all := map[string]*Found{}
	for name, c := range last {
		response, err := l.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
		if connection.Code(err) == codes.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, connection.Plain(err)
		}
		attempt := int(c.GetMetadata().GetAttempt())
		all[name] = &Found{Status: response.GetStatus(), imageID: c.GetImage().GetImage(), Container: &Container{
			Name: name, ID: c.Id, Kind: c.GetAnnotations()[manifest.AnnotationKind], Attempt: attempt,
			LogPath: dir.Log(name, attempt), MessagePath: dir.Message(name, attempt)}}
	}
	return all, nil
}

// Adopt takes over a pod that another command has made and that runs. document is what it was made from, with its UID.
func (l *Launcher) Adopt(ctx context.Context, document *manifest.Pod, sandbox *cri.PodSandbox) (*Pod, error) {
	meta := sandbox.GetMetadata()
	pod := &Pod{Pod: document, SandboxID: sandbox.GetId(), Created: Created(sandbox),
		dir: l.Store.Dir(meta.GetNamespace(), meta.GetName(), meta.GetUid())}
	if err := l.adopt(ctx, pod, sandbox); err != nil {
		pod.Release()
		return nil, fmt.Errorf("pod %s: take it over: %w", document.FullName(), err)
	}
	return pod, nil
}

func (l *Launcher) adopt(ctx context.Context, pod *Pod, sandbox *cri.PodSandbox) (err error) {
	if pod.Host, err = l.host(); err != nil {
		return err
	}
	if pod.release, err = pod.dir.Hold(); err != nil {
		return err
	}
	response, err := l.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: sandbox.GetId()})
	if err != nil {
		return connection.Plain(err)
	}
	status := response.GetStatus()
	pod.IPs = addresses(status)
	if ids := status.GetLinux().GetNamespaces().GetOptions().GetUsernsOptions().GetUids(); len(ids) > 0 {
		pod.FirstID = ids[0].GetHostId()
	}
	if pod.Found, err = l.Find(ctx, sandbox); err != nil {
		return err
	}
	unstarted, err := l.removeUnstarted(ctx, pod)
	if err == nil && unstarted { // attempts before those count again
		pod.Found, err = l.Find(ctx, sandbox)
	}
	if err != nil {
		return err
	}
	if pod.images, err = l.images(ctx, pod.Pod, pod.Found); err != nil {
		return err
	}
	pod.volumes = pod.dir.Volumes(pod.Spec.Volumes)
	addDaemons(pod.volumes, pod.Pod, pod.images)
	if pod.hosts, err = pod.dir.Hosts(); err == nil && pod.hosts == nil {
		pod.hosts, err = l.hosts(pod) // its maker was killed before it could write the file
	}
	for c := range pod.Pod.Containers() { // in the order in which they are started
		if found := pod.Found[c.Name]; found != nil {
			pod.Containers = append(pod.Containers, found.Container)
			for name := range claims(pod.Pod, c) { // its maker has seen to them before it started the container
				pod.give(name)
			}
		}
	}
	return err
}

// removeUnstarted removes the containers of a pod whose maker was killed before it could start them.
func (l *Launcher) removeUnstarted(ctx context.Context, pod *Pod) (any bool, err error) {
	for name, found := range pod.Found {
		if found.Status.GetState() != cri.ContainerState_CONTAINER_CREATED {
			continue
		}
		if _, err := l.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: found.ID}); err != nil {
			return any, connection.Plain(err)
		}
		if err := pod.dir.Forget(name, found.Attempt); err != nil {
			return any, err
		}
		any = true
	}
	return any, nil
}

// Created is when a sandbox was made.
func Created(sandbox *cri.PodSandbox) time.Time { return time.Unix(0, sandbox.GetCreatedAt()) }
