package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) UpdatePodSandboxResources(ctx context.Context, req *api.UpdatePodSandboxResourcesRequest) (
	*api.UpdatePodSandboxResourcesResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("pod_sandbox_id", req.GetPodSandboxId())
	overhead := toResources(c, "overhead", req.GetOverhead())
	resources := toResources(c, "resources", req.GetResources())
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := s.Runtime.UpdateSandboxResources(ctx, req.PodSandboxId, overhead, resources); err != nil {
		return nil, err
	}
	return &api.UpdatePodSandboxResourcesResponse{}, nil
}
