package v1alpha1

import (
	"context"

	api "berth/api/runtime/v1alpha1"
)

func (s *runtimeService) StopPodSandbox(ctx context.Context,
	req *api.StopPodSandboxRequest) (*api.StopPodSandboxResponse, error) {
	c := newCheck(req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.StopSandbox(ctx, req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &api.StopPodSandboxResponse{}, nil
}
