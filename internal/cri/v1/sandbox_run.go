package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) RunPodSandbox(ctx context.Context,
	req *api.RunPodSandboxRequest) (*api.RunPodSandboxResponse, error) {
	c := newCheck(s.dialect, req)
	cfg := toSandboxConfig(c, "config", req.GetConfig())
	if err := c.Err(); err != nil {
		return nil, err
	}
	id, err := s.Runtime.RunSandbox(ctx, cfg, s.dialect.Handler(req.Config, req.RuntimeHandler))
	if err != nil {
		return nil, err
	}
	return &api.RunPodSandboxResponse{PodSandboxId: id}, nil
}
