package v1alpha1

import (
	"context"

	api "berth/api/runtime/v1alpha1"
)

func (s *runtimeService) StopContainer(ctx context.Context,
	req *api.StopContainerRequest) (*api.StopContainerResponse, error) {
	c := newCheck(req)
	c.ID("container_id", req.GetContainerId())
	timeout := c.Seconds("timeout", req.GetTimeout())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.StopContainer(ctx, req.GetContainerId(), timeout); err != nil {
		return nil, err
	}
	return &api.StopContainerResponse{}, nil
}
