package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) RemoveContainer(ctx context.Context,
	req *api.RemoveContainerRequest) (*api.RemoveContainerResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.RemoveContainer(ctx, req.ContainerId); err != nil {
		return nil, err
	}
	return &api.RemoveContainerResponse{}, nil
}
