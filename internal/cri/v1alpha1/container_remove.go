package v1alpha1

import (
	"context"

	api "berth/api/runtime/v1alpha1"
)

func (s *runtimeService) RemoveContainer(ctx context.Context,
	req *api.RemoveContainerRequest) (*api.RemoveContainerResponse, error) {
	c := newCheck(req)
	c.ID("container_id", req.GetContainerId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.RemoveContainer(ctx, req.GetContainerId()); err != nil {
		return nil, err
	}
	return &api.RemoveContainerResponse{}, nil
}
