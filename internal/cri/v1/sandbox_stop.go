package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) StopPodSandbox(ctx context.Context,
	req *api.StopPodSandboxRequest) (*api.StopPodSandboxResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.StopSandbox(ctx, req.PodSandboxId); err != nil {
		return nil, err
	}
	return &api.StopPodSandboxResponse{}, nil
}
