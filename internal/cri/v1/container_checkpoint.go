package v1

import (
	"context"

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
	if err := s.Runtime.CheckpointContainer(ctx, req.ContainerId, req.Location, timeout); err != nil {
		return nil, err
	}
	return &api.CheckpointContainerResponse{}, nil
}
