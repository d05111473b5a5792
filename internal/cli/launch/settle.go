package launch

import (
	"context"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
)

// Settle finds out what has become of a container whose Start failed. A runtime that was killed before it could answer
// may have started the container all the same. Settle waits until the runtime answers. It returns the status of a
// container that runs, or has run. A container that has not been started is removed, and the status is nil.
func (l *Launcher) Settle(ctx context.Context, pod *Pod, c *Container) (*cri.ContainerStatus, error) {
	status, err := l.Watch.Status(ctx, c.ID)
	switch {
	case connection.Code(err) == codes.NotFound:
		return nil, nil
	case err != nil:
		return nil, err
	case status.GetState() != cri.ContainerState_CONTAINER_CREATED:
		l.began(pod, c)
		return status, nil
	}
	// The runtime may still be starting the container. The removal ends the container then.
	if err := answered(ctx, func() error {
		_, err := l.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.ID})
		return err
	}); err != nil {
		return nil, err
	}
	return nil, pod.dir.Forget(c.Name, c.Attempt)
}

// began adds a container that was started to those of its pod.
func (l *Launcher) began(pod *Pod, c *Container) {
	pod.mu.Lock()
	pod.Containers = append(pod.Containers, c)
	pod.mu.Unlock()
	if l.Started != nil {
		l.Started(pod, c)
	}
}
