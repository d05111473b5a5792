package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) StopContainer(ctx context.Context,
	req *api.StopContainerRequest) (*api.StopContainerResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	timeout := c.Seconds("timeout", req.GetTimeout())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.StopContainer(ctx, req.ContainerId, timeout); err != nil {
		return nil, err
	}
	return &api.StopContainerResponse{}, nil
}
