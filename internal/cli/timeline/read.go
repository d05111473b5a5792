package timeline

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

// Read asks the runtime for the steps of a pod and of its containers, and for the pulls of their images.
func Read(ctx context.Context, conn *connection.Connection, pod *cri.PodSandbox) ([]Step, error) {
	status, err := conn.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.Id, Verbose: true})
	if err != nil {
		return nil, connection.Plain(err)
	}
	steps, err := Parse("pod", status.GetInfo())
	if err != nil {
		return nil, err
	}
	containers, err := lookup.Containers(ctx, conn.Runtime, &cri.ContainerFilter{PodSandboxId: pod.Id})
	if err != nil {
		return nil, err
	}
	var statuses []*cri.ContainerStatus
	for _, c := range containers {
		status, err := conn.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id, Verbose: true})
		if err != nil {
			return nil, connection.Plain(err)
		}
		more, err := Parse(status.GetStatus().GetMetadata().GetName(), status.GetInfo())
		if err != nil {
			return nil, err
		}
		steps = append(steps, more...)
		statuses = append(statuses, status.GetStatus())
	}
	if len(steps) == 0 {
		return nil, nil
	}
	pulls, err := pullsOf(ctx, conn, statuses)
	if err != nil {
		return nil, err
	}
	start := steps[0].Begin
	for _, s := range steps {
		if s.Begin.Before(start) {
			start = s.Begin
		}
	}
	return append(steps, pullSteps(pulls, start)...), nil
}
