package v1alpha1

import (
	"context"

	api "berth/api/runtime/v1alpha1"
)

func (s *runtimeService) StartContainer(ctx context.Context,
	req *api.StartContainerRequest) (*api.StartContainerResponse, error) {
	c := newCheck(req)
	c.ID("container_id", req.GetContainerId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.StartContainer(ctx, req.GetContainerId()); err != nil {
		return nil, err
	}
	return &api.StartContainerResponse{}, nil
}
