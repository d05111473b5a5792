package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
)

// errUnsettled means that a start has failed, and that nobody knows whether the container runs all the same. No other
// attempt may be started then.
var errUnsettled = errors.New("it is not known whether the container runs")

// start starts an attempt of the container. The start may fail and the container run all the same, or have run, as
// where the runtime is killed before it can answer. Then start returns the container. over is the end of a container
// that has ended. The error is nil unless the container has ended because it could not be started.
func (r *restarter) start(ctx context.Context, attempt int) (running *launch.Container, over *cri.ContainerStatus,
	err error) {
	c, err := r.pod.s.Launcher.Start(ctx, r.pod.Pod, r.container, attempt)
	return r.settled(ctx, c, err)
}

// startFirst is start for a pod that is being started. If the pod does not last, the pod is removed again where the
// runtime says why it does not start a container, and so nobody asks for the state of the container then.
func (r *restarter) startFirst(ctx context.Context, attempt int) (running *launch.Container,
	over *cri.ContainerStatus, err error) {
	l := r.pod.s.Launcher
	c, err := l.Start(ctx, r.pod.Pod, r.container, attempt)
	if err != nil && !r.pod.s.Lasting && (connection.Code(err) != codes.Unavailable || l.Begin != nil) {
		return nil, nil, err // a terminal that Begin has lost does not come back
	}
	return r.settled(ctx, c, err)
}

// settled is start after the call of the launcher, which has returned c and failed.
func (r *restarter) settled(ctx context.Context, c *launch.Container, failed error) (running *launch.Container,
	over *cri.ContainerStatus, err error) {
	if failed == nil {
		r.postStart(ctx, c)
		return c, nil, nil
	}
	if c == nil || ctx.Err() != nil {
		return nil, nil, failed
	}
	status, err := r.settle(ctx, c)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("%w; %w: %w", failed, errUnsettled, err)
	case status == nil:
		return nil, nil, failed
	case status.GetState() != cri.ContainerState_CONTAINER_EXITED:
		r.pod.note("container %s runs, though its start was not answered: %v", c.Name, failed)
		r.postStart(ctx, c)
		return c, nil, nil
	case connection.Code(failed) == codes.Unavailable:
		return c, status, nil
	}
	return c, status, failed
}

// settle asks what has become of a container whose start failed. For a pod that lasts it asks until the answer is
// known.
func (r *restarter) settle(ctx context.Context, c *launch.Container) (*cri.ContainerStatus, error) {
	var delays Backoff
	for {
		status, err := r.pod.s.Launcher.Settle(ctx, r.pod.Pod, c)
		if err == nil || !r.pod.s.Lasting || ctx.Err() != nil {
			return status, err
		}
		wait := delays.Next(time.Now())
		r.pod.note("container %s: %v: %v; asked again in %v", c.Name, errUnsettled, err, wait)
		if !sleep(ctx, wait) {
			return nil, err
		}
	}
}
