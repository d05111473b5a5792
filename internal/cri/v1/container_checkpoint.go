package v1

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) CheckpointContainer(ctx context.Context, req *api.CheckpointContainerRequest) (
	*api.CheckpointContainerResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	if req.GetLocation() == "" {
		c.Fail("location", "is required")
	}
	timeout := c.Seconds("timeout", req.GetTimeout())
	if err := c.Err(); err != nil {
		return nil, err
	}
	err := s.Runtime.CheckpointContainer(ctx, req.ContainerId, req.Location, timeout)
	if errdefs.IsNotImplemented(err) {
		// On a node without CRIU there is no such call: gRPC says it in these words, by which Kubernetes' tests know
		// it.
		err = fmt.Errorf("unknown method CheckpointContainer: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return &api.CheckpointContainerResponse{}, nil
}
