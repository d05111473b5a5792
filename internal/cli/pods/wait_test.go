package pods

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

// removing is a runtime of two containers: "gone" is removed, and "stays" ends once that has been told.
type removing struct {
	cri.RuntimeServiceClient
	told atomic.Bool
}

func (r *removing) GetContainerEvents(context.Context, *cri.GetEventsRequest, ...grpc.CallOption) (
	grpc.ServerStreamingClient[cri.ContainerEventResponse], error) {
	return nil, status.Error(codes.Unimplemented, "no events")
}

func (r *removing) ContainerStatus(ctx context.Context, request *cri.ContainerStatusRequest, _ ...grpc.CallOption) (
	*cri.ContainerStatusResponse, error) {
	if request.GetContainerId() == "gone" {
		r.told.Store(true)
		return nil, status.Error(codes.NotFound, "no such container")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	state := &cri.ContainerStatus{State: cri.ContainerState_CONTAINER_RUNNING}
	if r.told.Load() {
		state = &cri.ContainerStatus{State: cri.ContainerState_CONTAINER_EXITED, ExitCode: 7}
	}
	return &cri.ContainerStatusResponse{Status: state}, nil
}

// TestOthersAreWaitedForThoughOneIsRemoved. Seen to fail where the first error ends all.
func TestOthersAreWaitedForThoughOneIsRemoved(t *testing.T) {
	containers := []*lookup.Container{{Container: &cri.Container{Id: "gone"}}, {Container: &cri.Container{Id: "stays"}}}
	rows, err := waitFor(t.Context(), &connection.Connection{Runtime: &removing{}}, containers)
	if err == nil || !strings.Contains(err.Error(), "it was removed meanwhile") {
		t.Errorf("the container that was removed: %v", err)
	}
	if len(rows) != 1 || rows[0].ID != "stays" || rows[0].ExitCode != 7 {
		t.Errorf("the other one: %+v", rows)
	}
}
