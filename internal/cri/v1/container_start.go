package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) StartContainer(ctx context.Context,
	req *api.StartContainerRequest) (*api.StartContainerResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.StartContainer(ctx, req.ContainerId); err != nil {
		return nil, err
	}
	return &api.StartContainerResponse{}, nil
}
