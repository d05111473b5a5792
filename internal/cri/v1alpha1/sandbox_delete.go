package v1alpha1

import (
	"context"

	api "berth/api/runtime/v1alpha1"
)

func (s *runtimeService) DeletePodSandbox(ctx context.Context,
	req *api.DeletePodSandboxRequest) (*api.DeletePodSandboxResponse, error) {
	c := newCheck(req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.RemoveSandbox(ctx, req.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &api.DeletePodSandboxResponse{}, nil
}
