package v1

import (
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// GetContainerEvents ends with Unavailable when the client reads too slowly: it comes back and lists.
func (s *runtimeService) GetContainerEvents(req *api.GetEventsRequest,
	out grpc.ServerStreamingServer[api.ContainerEventResponse]) error {
	if err := checkOnly(s.dialect, req); err != nil {
		return err
	}
	ctx := out.Context()
	events := s.Runtime.Subscribe(ctx)
	// Who waits for the header knows that no event from now on is missed.
	if err := out.SendHeader(nil); err != nil {
		return err
	}
	for e := range events {
		err := out.Send(&api.ContainerEventResponse{
			ContainerId:        e.ContainerID,
			ContainerEventType: eventTypesOut[e.Type],
			CreatedAt:          nanoseconds(e.At),
			PodSandboxStatus:   fromSandboxStatus(e.Sandbox),
			ContainersStatuses: fromContainerStatuses(s.dialect, e.Containers),
		})
		if err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return fmt.Errorf("events: the reader was too slow, or berthd ends: %w", errdefs.ErrUnavailable)
}
